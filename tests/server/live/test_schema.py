"""Every route takes what /openapi.json says, and answers as it says; some hundred cases (make soak: 20,000)."""

from schema_cases import schemathesis_run


def test_no_generated_request_breaks_the_server(serving, tmp_path):
    server = serving("llama", "--max-reply", "16", "--sessions", tmp_path / "sessions")
    cases = schemathesis_run(server, tmp_path, examples=12, phases="fuzzing")
    assert cases.code == 0, cases.output[-6000:]
    assert cases.generated >= 150
    assert server.get("/health").status == 200
