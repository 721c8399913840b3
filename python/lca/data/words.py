"""Words, names and values of planted tasks.

None of the words is in the lists from which RULER draws its keys (nouns, adjectives and verbs of wonderwords);
python/tests/test_data_tasks.py compares them. Names of people and places are made of syllables.
"""

from __future__ import annotations

import random
import uuid

WORDS = """
amphora anvil arbour archway aspen auger awning azalea balustrade banister bannister barnacle barrow
battlement bayonet beacon bilberry billhook bobbin bodkin bollard bracken bramble brazier breakwater bridle
brine buckram bulrush bulwark burdock burlap buttress cairn caltrop camphor caraway cardamom carillon
cartwheel catkin cedar celandine centime chaffinch chandler chervil chisel cistern citadel clavichord cobble
cockle codex coiffure colander colonnade comfrey copse coracle cordage coriander cornice cowslip crevasse
crowbar crucible curlew curricle cutlass cuttlefish cypress damask damson davit dormouse dovecote dovetail
dowel driftwood drystone dunlin eiderdown embrasure ermine escutcheon ewer farthing fescue fetlock filigree
finial firkin flagstone flotilla foolscap footbridge fossil freesia frieze fritillary fuchsia furlong gable
galleon gantry gargoyle garnet gatepost gentian gibbon gimlet girder gneiss goblet godwit goldfinch goosander
gorse granary granite greengage grindstone grotto guillemot gunwale gypsum halberd halyard hamlet harpoon
harrier hawser hawthorn hayrick headland heather hedgerow hemlock hillock hobnail hogshead holly honeycomb
hopper hornbeam inkwell isthmus jackdaw jasper jetty juniper keelson kestrel kiln kingfisher knapsack lacquer
lagoon lapwing larkspur lattice laurel lavender lectern lichen linchpin linden linnet lintel lobelia lodestone
loom lozenge lupin lychgate madrigal magnolia malachite mallow marigold marjoram marmot marquetry martlet
mastic mazurka medlar merganser merlin millpond millrace mistletoe mizzen monolith moraine mortice mulberry
mullion muslin myrtle nasturtium newel nightjar nuthatch oarlock obelisk ocarina oriole osier oxbow palanquin
palisade papyrus parapet parquet pashmina pebble pediment pergola periwinkle petrel petunia pewter pilaster
pimpernel pinnace pinnacle plumb pontoon poplar portcullis portico primrose promontory pumice purlin quagmire
quarto quatrain quoin rafter ramekin rampart ratchet ravine redshank redstart reredos rivet rookery rosette
rosewood rowan rudder runnel rushlight sackbut sandpiper sandstone sapling scabbard sconce scree scullery
scythe seagrass sedge sequoia sextant shale shallop shearwater shuttle sickle siskin skein skiff skylark sloop
sluice snapdragon snipe snowdrop spandrel spillway spindle spinet spinney spire spoke stalactite stanchion
starling stile stirrup stoat stockade stopcock tabard tamarind tankard tansy tapestry tarpaulin teasel thatch
thimble thurible tiller tollgate torque tourmaline towpath treadle trestle trivet trough truffle turbot tureen
turquoise tussock valerian verbena vestibule viaduct viburnum wagtail wainscot warbler weathervane weir
wheelwright whelk wherry whimbrel whippet whortle wicket windlass woodbine woodcock woodruff yarrow zinnia
""".split()

#: Everyday words, which a text is full of: what they name is easily mistaken.
COMMON_FIRST = """
golden gloomy noble solemn lofty merry feeble fearful queer severe stern domestic grateful older smaller larger
higher lower stronger nearer forgotten unknown natural proper foreign grave dreadful thick evident entire regular
immediate violent unhappy favourite practical frequent delicate solitary actual eternal fatal universal central
apparent impatient intense formidable moderate mutual invisible extensive slight sorry useful moral worthy visible
false miserable spoken written chosen fallen sunken drunken silken earthly stately ghastly melancholy national
superior inferior active desperate uneasy popular remarkable
""".split()
COMMON_SECOND = """
friends trees girls miles books months goods letters walls servants horses windows streets woods duties stairs
papers rooms fingers shoulders soldiers voices birds knees branches ships creatures officers plans companions
stars beings yards clouds stones rocks waves fields hills dollars sisters brothers roads changes scenes pleasures
enemies lights shadows parents boots towns stories merchants services materials masters resources depths gates
provisions cities armies guests nights chairs rules gardens lessons plants doubts mines courts priests wheels
weapons prices curtains beasts pages schools passengers traces footsteps guards secrets tables mothers verses
fires teachers ruins wounds ashes crimes gifts machines roses rings leaders shores corners gloves songs heels
cliffs pupils candles lovers fruits sailors jewels winds columns boats students islands articles pockets
newspapers daughters bones kings vessels prayers travellers
""".split()

HEADS = "Bar Bel Bren Cal Car Dar Del Dor El Fal Fen Gar Gil Hal Har Hol Ister Jor Kel Kin Lan Lor Mar Mel Mor Nar " \
         "Nor Ol Or Pel Per Quen Ral Ros Sal Sel Tal Tam Tor Ul Van Vel Wes Wil Yar Zan".split()
MIDDLES = "a ab ad al am an ar e el em en er i il in ir o ol on or u ul un ur".split()
TAILS = "bek bourne brandt by dale dan dene dine dorn fell ford gard ham holm kirk lack leigh lin mere mond nack " \
         "ness nik ric sby shaw sted strand tyn thorpe thwaite torr vale vane vick ville wick worth yce".split()
PLACES = ("the {} archive", "the {} brewery", "the {} foundry", "the boathouse at {}", "{} Lighthouse",
          "the {} infirmary", "the dockyard of {}", "the parish of {}", "the {} consortium", "the {} regatta",
          "{} Priory", "the sawmill at {}")
ITEMS = "docket folio reel pallet valve berth specimen footlocker satchel cask carton vial canister mooring buoy " \
        "waybill voucher placard tramcar coffer".split()
_LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ"
_MONTHS = "January February March April May June July August September October November December".split()


def name(draw: random.Random) -> str:
    """An invented proper name such as Kelinthorpe."""
    return draw.choice(HEADS) + (draw.choice(MIDDLES) if draw.random() < 0.5 else "") + draw.choice(TAILS)


def symbol(draw: random.Random) -> str:
    """A short lower-case identifier such as vel3 or oldorn_k."""
    form = draw.randrange(3)
    if form == 0:
        return draw.choice(HEADS).lower() + str(draw.randrange(1, 100))
    if form == 1:
        return name(draw).lower()
    return f"{draw.choice(WORDS)}_{draw.choice(_LETTERS).lower()}{draw.randrange(10)}"


def key(draw: random.Random) -> str:
    """What a fact is about: a person, a place, a numbered thing, words, or an identifier."""
    form = draw.random()
    if form < 0.15:
        return f"{name(draw)} {name(draw)}"
    if form < 0.3:
        return draw.choice(PLACES).format(name(draw))
    if form < 0.4:
        return f"{draw.choice(ITEMS)} {draw.choice(_LETTERS)}-{draw.randrange(2, 1000)}"
    if form < 0.55:
        return "the " + " ".join(draw.sample(WORDS, 2))
    if form < 0.65:
        return "-".join(draw.sample(WORDS, 2))
    if form < 0.9:
        return common(draw, draw.choice(("{}-{}", "{}-{}", "the {} {}", "{} {}")))
    return hexadecimal(draw)


def common(draw: random.Random, form: str) -> str:
    """Two everyday words."""
    return form.format(draw.choice(COMMON_FIRST), draw.choice(COMMON_SECOND))


def keys(draw: random.Random, count: int) -> list[str]:
    """Different keys, of one form in half of the cases, so that they are easily mistaken for each other."""
    alike = draw.random() < 0.5
    found: list[str] = []
    head = key(draw)
    while len(found) < count:
        other = _like(draw, head) if alike else key(draw)
        if other not in found:
            found.append(other)
    return found


def _like(draw: random.Random, head: str) -> str:
    words = head.split()
    if words[-1][1:2] == "-" and len(words) == 2:
        return f"{words[0]} {draw.choice(_LETTERS)}-{draw.randrange(2, 1000)}"
    if head.count("-") == 4:
        return hexadecimal(draw)
    if words[-1].split("-")[-1] in COMMON_SECOND:
        return common(draw, "{}-{}" if "-" in head else "the {} {}" if words[0] == "the" else "{} {}")
    if head.count("-") == 1:
        return "-".join(draw.sample(WORDS, 2))
    return f"{name(draw)} {name(draw)}"


def hexadecimal(draw: random.Random) -> str:
    """A random UUID."""
    return str(uuid.UUID(int=draw.getrandbits(128), version=4))


def number(draw: random.Random) -> str:
    """Three to nine digits."""
    digits = draw.choice((3, 4, 5, 6, 6, 7, 7, 8, 9))
    return str(draw.randrange(10 ** (digits - 1), 10 ** digits))


def _code(draw: random.Random) -> str:
    return (f"{draw.choice(_LETTERS)}{draw.choice(_LETTERS)}-{draw.randrange(10, 1000)}"
            + (f"-{draw.choice(_LETTERS)}" if draw.random() < 0.5 else ""))


def _other(draw: random.Random) -> str:
    form = draw.randrange(4)
    if form == 0:
        return f"{draw.randrange(1, 29)} {draw.choice(_MONTHS)} {draw.randrange(1650, 2000)}"
    if form == 1:
        return f"{draw.randrange(1, 1000)}.{draw.randrange(10, 1000)}"
    if form == 2:
        return "".join(draw.choice("0123456789abcdef") for _ in range(draw.choice((6, 8, 10, 12))))
    return _code(draw)


#: Kinds of value and their makers.
VALUES = {
    "number": number,
    "word": lambda draw: " ".join(draw.sample(WORDS, draw.choice((1, 1, 2, 3)))),
    "uuid": hexadecimal,
    "other": _other,
}


def values(draw: random.Random, count: int, shares: dict[str, float]) -> list[str]:
    """Different values, all of one kind in half of the cases."""
    kinds, weights = list(shares), list(shares.values())
    alike, kind = draw.random() < 0.5, draw.choices(kinds, weights)[0]
    found: list[str] = []
    while len(found) < count:
        value = VALUES[kind if alike else draw.choices(kinds, weights)[0]](draw)
        if value not in found:
            found.append(value)
    return found
