"""Which replica a request belongs to. Plain functions, without Ray.

A request has a key: its session's name, else a hash of how its conversation begins, else nothing. Replicas are
ranked for a key by rendezvous hashing: each gets a hash of key and replica, the highest is first. When a replica
comes or goes, only the keys for which it is first change their place.
"""

import hashlib
import json
import urllib.parse

ROUTING_HEADER = "x-smg-routing-key"
# A prompt that is one text grows from request to request; its beginning stays.
PROMPT_BEGINNING = 512
# Routes whose body carries a conversation.
CONVERSATIONS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages",
                 "/v1/messages/count_tokens")


def digest(value):
    return hashlib.blake2b(value.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def routing_key(method, path, headers, body, first="message"):
    """The key of a request, or None where any replica will do.

    `headers` maps lower-case names to values. `first` says how a conversation without a session is known: by its
    first message ("message"), or by all up to the first user message ("user"), which spreads conversations that share
    a long system prompt.
    """
    name = session_of_path(path)
    if name is None:
        name = headers.get(ROUTING_HEADER) or None
    if name is not None:
        return "session:" + name
    if method != "POST" or path not in CONVERSATIONS:
        return None
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None  # the server says what is wrong with it
    if not isinstance(value, dict):
        return None
    metadata = value.get("metadata")
    if isinstance(metadata, dict) and isinstance(metadata.get("session"), str) and metadata["session"]:
        return "session:" + metadata["session"]
    beginning = conversation_beginning(value, first)
    if beginning is None:
        return None
    return "text:" + digest(json.dumps(beginning, sort_keys=True))


def session_of_path(path):
    """The session that a path names: /v1/sessions/NAME…, /cache/NAME."""
    parts = path.split("/")
    if parts[:3] == ["", "v1", "sessions"] and len(parts) > 3 and parts[3]:
        return urllib.parse.unquote(parts[3])
    if parts[:2] == ["", "cache"] and len(parts) > 2 and parts[2]:
        return urllib.parse.unquote(parts[2])
    return None


def conversation_beginning(value, first):
    """What the turns of one conversation have in common, or None."""
    system = value.get("system", value.get("instructions"))
    messages = value.get("messages", value.get("input"))
    if isinstance(messages, list) and messages:
        if first != "user":
            return [system, messages[0]]
        head = []
        for message in messages:
            head.append(message)
            if not isinstance(message, dict) or message.get("role") not in ("system", "developer"):
                break
        return [system, head]
    prompt = messages if isinstance(messages, str) else value.get("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]  # a batch of prompts
    if isinstance(prompt, (str, list)) and prompt:
        return [system, prompt[:PROMPT_BEGINNING]]
    return None


def rank(key, replicas):
    """The names in `replicas`, first choice first."""
    return sorted(replicas, key=lambda name: (digest(f"{key}\n{name}"), name), reverse=True)
