"""What the prompts of prompts.py are about. Lists are split at semicolons."""


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.replace("\n", " ").split(";") if part.strip()]


SUBJECTS = _list("""
the rotation of the Earth; tides; volcanoes; glaciers; coral; fog; lightning; hail; monsoons; sand dunes; caves; hot
springs; plate tectonics; fossils; meteorites; the asteroid belt; Saturn's rings; red giants; supernovae; nebulae;
radio telescopes; satellites; rockets; orbits; the International Space Station; friction; magnetism; static
electricity; pressure; buoyancy; sound waves; echoes; lenses; mirrors; rainbows; lasers; semiconductors;
transistors; electric motors; generators; transformers; fuses; circuit breakers; heat pumps; steam engines; diesel
engines; gearboxes; suspension bridges; arches; dams; canals; locks on a canal; elevators; escalators; clocks;
compasses; barometers; thermometers; sextants; sundials; printing presses; typewriters; looms; sewing machines;
cameras; film projectors; record players; radios; televisions; fibre optics; the internet; routers; web browsers;
cookies on websites; e-mail; encryption; digital signatures; hashing; compilers; interpreters; version control; unit
tests; databases; caches; sorting algorithms; binary search; linked lists; hash tables; graphs in mathematics;
probability; averages and medians; standard deviation; logarithms; exponents; fractions; negative numbers; imaginary
numbers; matrices; vectors; geometry; the Pythagorean theorem; pi; Fibonacci numbers; proofs by contradiction; set
theory; game theory; supply and demand; interest rates; taxes; insurance; pensions; credit scores; auctions;
cooperatives; trade unions; central banks; exchange rates; recessions; patents; copyright; contracts; juries;
constitutions; parliaments; elections; referendums; the United Nations; the European Union; the Roman Empire;
ancient Egypt; the Silk Road; the Vikings; the Black Death; the Renaissance; the Reformation; the French Revolution;
the Industrial Revolution; the Suez Canal; the Panama Canal; the gold rush; the Great Depression; the Cold War; the
fall of the Berlin Wall; the Olympic Games; the Nobel Prize; archaeology; anthropology; linguistics; psychology;
memory; dreams; habits; attention; stress; empathy; optimism; the immune system; blood types; bones; muscles; lungs;
digestion; the liver; skin; taste buds; hearing; eyesight; hormones; vitamins; proteins; cholesterol; antibiotics;
allergies; fevers; first aid; sleep; yoga; meditation; swimming; marathons; chess; go; poker; cricket; baseball;
basketball; tennis; rugby; ice hockey; fencing; archery; rowing; judo; climbing; cycling; skiing; surfing; sailing;
fishing; beekeeping; composting; crop rotation; greenhouses; irrigation; soil; mushrooms; moss; ferns; cacti;
orchids; oak trees; bamboo; seaweed; plankton; jellyfish; sharks; whales; dolphins; salmon; eels; turtles; snakes;
lizards; owls; eagles; penguins; swallows; ravens; bats; hedgehogs; beavers; wolves; bears; elephants; giraffes;
camels; horses; donkeys; goats; sheep; chickens; ducks; spiders; ants; butterflies; beetles; earthworms; snails;
cheese; yoghurt; chocolate; coffee; vinegar; olive oil; sugar; spices; noodles; sushi; curry; soup; wine; beer;
cider; opera; ballet; symphonies; the violin; the piano; the flute; drums; choirs; folk songs; hip hop; the blues;
musical scales; rhythm; harmony; perspective in painting; watercolours; sculpture; pottery; mosaics; origami;
calligraphy; photography; animation; theatre; puppets; comics; novels; short stories; essays; fables; myths; epics;
biographies; diaries; punctuation; commas; semicolons; idioms; slang; dialects; alphabets; Braille; sign language;
Morse code; maps; latitude and longitude; calendars; currencies; recycling; plastics; glass; paper; steel; concrete;
rubber; cotton; wool; silk; leather; dyes; soap; candles; matches; perfume; wind turbines; solar panels; nuclear
power; hydropower; biofuels; the greenhouse effect; the ozone layer; acid rain; deforestation; national parks;
endangered species
""")

TASKS = _list("""
paint a room; hang a picture straight; fix a dripping tap; unclog a sink; patch a hole in a wall; change a light
bulb; sharpen a kitchen knife; descale a kettle; clean an oven; wash windows without streaks; iron a shirt; sew on a
button; darn a sock; hem trousers; remove candle wax from a carpet; polish shoes; waterproof boots; pack a suitcase;
plan a road trip; book a cheap flight; read a train timetable; use a map and compass; pitch a tent; light a
campfire; purify water; treat a blister; bandage a cut; take a pulse; check tyre pressure; change a flat tyre;
jump-start a car; parallel park; mend a bicycle puncture; adjust bicycle brakes; prune roses; repot a plant; sow
carrots; grow basil on a windowsill; build a bird box; attract butterflies; keep slugs away; mow a lawn; rake
leaves; stack firewood; bake a sourdough loaf; roast a chicken; poach an egg; make vegetable stock; cook pasta;
knead dough; whip cream; chop an onion; peel garlic; freeze berries; pickle cucumbers; make jam; brew coffee; set a
table; host a dinner party; write a shopping list; plan meals for a week; read a nutrition label; organise a
wardrobe; declutter a desk; clean a keyboard; back up a computer; speed up a slow laptop; set up a printer; share
files safely; write a professional e-mail; prepare a presentation; take good notes; study for an exam; memorise a
poem; learn vocabulary; improve handwriting; read faster; write a summary; structure an essay; cite sources;
proofread a text; give constructive feedback; lead a meeting; negotiate a salary; write a CV; ask for a reference;
resign from a job; manage time; set goals; break a bad habit; start a diary; begin jogging; stretch safely; lift
heavy boxes; sit properly at a desk; rest tired eyes; calm down before an exam; comfort a sad friend; resolve an
argument; say no kindly; make new friends; host a guest; choose a gift; wrap a present; write a condolence card;
plan a birthday party; organise a picnic; entertain a toddler; read aloud to children; help with homework; teach a
child to swim; house-train a puppy; groom a long-haired cat; clean a fish tank; feed wild birds; adopt a rescue dog;
photograph the night sky; edit a photo; draw a face; mix colours; tune a ukulele; read sheet music; sing in tune;
learn a dance; juggle three balls; play backgammon; solve a crossword; fly a kite; skip stones; open a bank account;
compare phone contracts; file a complaint; return a faulty product; rent a flat; read an electricity meter; save
energy at home; insulate a window; prepare for a power cut
""")

CATEGORIES = _list("""
hobbies for winter evenings; indoor plants that need little light; dishes made with chickpeas; soups for cold days;
uses for old jars; games for a long car ride; gifts under twenty dollars; team-building activities; ice-breaker
questions; ways to relax; morning routines; healthy snacks; desserts without flour; breakfasts without sugar; rivers
in Europe; capitals in Asia; islands in the Mediterranean; deserts; mountain ranges; lakes in North America;
composers; playwrights; explorers; women scientists; inventors; philosophers; Nobel laureates in literature; famous
bridges; museums in Paris; board games; card games; team sports; water sports; dances; string instruments; wind
instruments; musical genres; film genres; punctuation marks; parts of speech; figures of speech; conjunctions;
irregular verbs; words with a silent letter; palindromes; homophones; loanwords in English; tools for woodworking;
kitchen utensils; pieces of furniture; kinds of knots; kinds of clouds; kinds of rock; metals; gases; gemstones;
chemical elements; units of length; units of energy; polygons; programming languages; text editors; kinds of tests
in software; file formats for images; safety rules for a laboratory; rules for a shared kitchen; questions to ask a
landlord; things to check before a hike; items for a first-aid kit; jobs that involve animals; jobs in a theatre;
trades that work with wood; volunteer activities; ways to reduce waste; ways to save water; ways to thank a teacher;
reasons to keep a diary; reasons to take the train; benefits of cooking at home; disadvantages of social media;
habits of good listeners; qualities of a leader; trees with edible nuts; birds of prey; nocturnal animals; animals
that live in the desert; insects that help gardeners; herbs for a balcony; flowers that bloom in spring; vegetables
to sow in autumn; dog breeds; horse gaits; fairy-tale characters; mythical creatures; Greek gods; constellations;
moons of Jupiter; space missions; ancient civilisations; world heritage sites; famous speeches; idioms about
weather; proverbs about work; adjectives for a landscape; verbs of speaking; names for a sailing boat; names for a
coffee shop; titles for a fantasy novel; topics for a school debate; ideas for a science fair; themes for a costume
party
""")

PAIRS = _list("""
a novel and a novella; butter and margarine; a hurricane and a tornado; jam and marmalade; a ship and a boat; rain
and sleet; a stalactite and a stalagmite; a moth and a butterfly; a hare and a rabbit; a dolphin and a porpoise; a
seal and a sea lion; a llama and an alpaca; a raven and a crow; an atom and a molecule; mass and weight; heat and
temperature; an acid and a base; a metal and an alloy; renting and leasing; a debit card and a credit card; gross
and net income; a tax and a tariff; a civil case and a criminal case; a barrister and a solicitor; a senator and a
representative; a kingdom and an empire; baroque and classical music; a viola and a violin; an opera and a musical;
an etching and an engraving; oil paint and acrylic paint; cotton and linen; porcelain and stoneware; a sprain and a
strain; a cold and the flu; a dietitian and a nutritionist; aerobic and anaerobic exercise; a latte and a
cappuccino; broth and stock; a herb and a spice; a nut and a seed; a yam and a sweet potato; a compiler and an
interpreter; RAM and a hard disk; HTTP and HTTPS; a stack and a queue; an array and a linked list; a process and a
thread; a class and an object; a library and a framework; Git and GitHub; a sonata and a symphony; who and whom;
less and fewer; its and it's; lie and lay; a colon and a semicolon; a hyphen and a dash; irony and sarcasm; a myth
and a legend; astronomy and astrology; geology and geography; a plateau and a plain; a bay and a gulf; a strait and
a channel; a fjord and a valley; a mean and a median; a permutation and a combination; a radius and a diameter; a
theorem and an axiom; a bicycle and a tricycle; a coach and a tram; diesel and petrol; a motor and an engine; a
monarchy and a dictatorship; empathy and sympathy; guilt and shame
""")

CODE = _list("""
checks whether a word is a palindrome; counts the vowels in a string; finds the second largest number in a list;
merges two sorted lists; removes duplicates from a list and keeps the order; computes the factorial of a number;
prints the multiplication table of seven; converts kilometres to miles; reads a file and prints its lines with
numbers; counts how often each word occurs in a text; generates a random password; checks whether a year is a leap
year; finds all divisors of a number; tests whether a number is prime; computes the greatest common divisor; sums
the digits of a number; converts a number to binary; transposes a matrix; multiplies two matrices; flattens a nested
list; rotates a list by k places; finds the longest word in a sentence; capitalises every word; validates an e-mail
address; parses a date; computes the days between two dates; downloads a web page; writes a list of records to a CSV
file; reads a JSON file; sorts a list of people by age; groups words by their first letter; implements a stack;
implements a queue with two stacks; performs a binary search; implements bubble sort; implements quicksort; computes
the n-th Fibonacci number; solves the towers of Hanoi; counts inversions in a list; checks balanced parentheses;
evaluates a simple arithmetic expression; draws a triangle of stars; simulates throwing two dice; plays rock, paper,
scissors; converts Roman numerals to integers; encodes a text with the Caesar cipher; finds anagrams in a word list;
computes the mean and the median; rounds a price to two decimals; prints a calendar of a month; measures how long a
function takes; retries a function three times; logs errors to a file; defines a class for a bank account; defines a
class for a rectangle with area and perimeter; reads command-line arguments
""")

LANGUAGES = ["Python", "Python", "Python", "JavaScript", "C", "C++", "Java", "Go", "Rust", "Ruby", "Bash"]

SENTENCES = _list("""
The results of the survey was not what we had expected; He don't know nothing about the broken window; I am writing
to you in order to inform you that your parcel has arrived; We need to talk about the budget as soon as possible;
The weather was bad and the road was closed and we were late; She said that she would maybe come if she had time;
Your invoice is late again and I am tired of waiting; The new software is good because it is good for everyone;
There is many reasons why people likes to travel; It was a dark and stormy night, and nobody dared to leave the inn;
The committee has made the decision to carry out an investigation of the matter; Please be advised that the pool
will be closed for cleaning; I can't attend the meeting, I have a dentist appointment; The soup was cold, the waiter
was rude, and the bill was wrong; My brother and me went to see the game last week; The experiment failed because
the temperature was not controlled; In my personal opinion, I think that the film was very unique; Everyone should
do their best in order to succeed in life; The old man walked slowly down the street with his dog; We regret to tell
you that the position has been filled; The car which is red and which is parked outside belongs to my aunt; Although
it was raining but they continued the match; This product is really, really amazing and you should totally buy it;
The teacher gave the students a lot of homework over the holidays; I have been waiting since two hours for the bus;
The data shows a small rise in sales during the spring; Nobody told us the library closes early on Fridays; The cake
that my grandmother baked it was delicious; The children were laughing and running through the wet grass; If I would
have known, I would have brought an umbrella; The river rose overnight and flooded three cellars; Our flight was
delayed by five hours without any explanation; You must fill in the form completely or it will be rejected; The
museum has a large collection of clocks from the last century; He quickly opened the letter and began to read it
aloud; The team worked all weekend to fix the error in the payment page
""")

PEOPLE = _list("""
a baker; a retired sailor; a young violinist; a postman; a night watchman; a shy inventor; two rival gardeners; a
girl who collects maps; a boy with a paper boat; an astronaut; a lost tourist; a clockmaker; a taxi driver; a
talking crow; a stubborn donkey; a small robot; a museum guard; a weather forecaster; a beekeeper; a tired dragon; a
truthful thief; a blind painter; a mountain guide; a chess teacher; a grandmother; an honest merchant; a ghost who
is afraid of the dark; a train conductor; a potter; a young queen; a stray cat; an old tree; a translator; a cook on
a submarine
""")
PLACES = _list("""
in a village without clocks; at a railway station at midnight; on a frozen lake; in an abandoned observatory; on a
small island; in a library that never closes; at the edge of a desert; on the last bus home; in a rooftop garden;
under a stone bridge; in a snowed-in mountain hut; at a seaside fair; in a lift that got stuck; on a long sea
voyage; in a city of canals; at a flea market; in a quiet courtyard; on the Moon; in an attic full of boxes; beside
a slow river
""")
EVENTS = _list("""
finds a key that fits no lock; receives a letter meant for somebody else; loses something precious; must keep a
secret for one day; hears a strange melody; makes an unlikely friend; has to choose between two promises; discovers
a hidden door; wins a prize by mistake; repairs something that everyone thought was broken; learns to forgive;
misses the last train; meets an old rival; tells a small lie that grows; waits for a storm to pass; wakes up a day
too early
""")
OCCASIONS = _list("""
asking for a day off; confirming an appointment; cancelling a subscription; complaining about a noisy neighbour;
thanking a host; congratulating someone on a new baby; inviting friends to a barbecue; reminding a client of an
unpaid bill; asking for a refund; recommending a former student; reporting a lost bag; accepting a job offer;
turning down an offer; asking for directions to an office; announcing a change of address; welcoming a new team
member; wishing someone a quick recovery; asking a professor for advice; proposing a meeting next week; sending the
minutes of a meeting; asking a supplier for prices; apologising for a late delivery; giving notice to a landlord;
requesting a copy of a document; suggesting a plan for a club trip; asking a neighbour to feed the cat; thanking a
volunteer; ordering flowers; asking about opening hours; arranging a phone call
""")
RECIPIENTS = _list("""
my boss; a customer; my aunt; the city council; a hotel; an old friend; my teacher; the members of a choir; my team;
an online shop; a travel agency; a journalist; my flatmate; the school office; a local newspaper; my doctor's
practice
""")
WORDS = _list("""
resilient; ambiguous; meticulous; candid; frugal; tedious; eloquent; obsolete; plausible; reluctant; vivid; zealous;
benign; concise; diligent; elusive; futile; gregarious; hinder; impartial; jovial; keen; lenient; mundane; novice;
oblivious; prudent; quaint; rigorous; serene; tangible; unanimous; versatile; wary; arid; brittle; coherent;
dormant; erratic; feasible; gist; humble; inevitable; lucid; mitigate; nostalgia; opaque; pivotal; relic; scarce;
tentative; vague; whim
""")
PHRASES = _list("""
Where is the train station?; I would like a glass of water.; How much does this cost?; See you tomorrow.; My name is
Anna.; The weather is beautiful today.; Can you help me, please?; I do not understand.; Happy new year!; What time
does the museum open?; I am learning to cook.; The book is on the table.; We are looking for a hotel.; Good night
and sleep well.; I have a reservation.; Do you speak English?; The bill, please.; Turn left at the church.; I am
allergic to nuts.; It was nice to meet you.
""")
TONGUES = ["French", "Spanish", "German", "Italian", "Portuguese", "Dutch", "Latin", "Swedish"]
COUNTRIES = _list("""
Argentina; Australia; Austria; Bangladesh; Bolivia; Brazil; Bulgaria; Cambodia; Canada; Chile; China; Colombia;
Cuba; Denmark; Ecuador; Egypt; Ethiopia; Finland; Ghana; Greece; Hungary; Iceland; India; Indonesia; Iran; Ireland;
Israel; Jamaica; Kenya; Latvia; Malaysia; Mexico; Mongolia; Morocco; Nepal; Nigeria; Norway; Pakistan; Peru; the
Philippines; Poland; Portugal; Romania; Scotland; Senegal; Serbia; Singapore; South Africa; South Korea; Sri Lanka;
Sweden; Switzerland; Tanzania; Thailand; Tunisia; Turkey; Ukraine; Uruguay; Vietnam; Zambia
""")
FIGURES = _list("""
Albert Einstein; Isaac Newton; Galileo Galilei; Ada Lovelace; Alan Turing; Nikola Tesla; Thomas Edison; Louis
Pasteur; Gregor Mendel; Alexander Fleming; Rosalind Franklin; Johannes Kepler; Archimedes; Euclid; Hypatia; Carl
Friedrich Gauss; Leonhard Euler; Emmy Noether; Srinivasa Ramanujan; Cleopatra; Julius Caesar; Alexander the Great;
Genghis Khan; Joan of Arc; Leonardo da Vinci; Michelangelo; Rembrandt; Vincent van Gogh; Frida Kahlo; Johann
Sebastian Bach; Wolfgang Amadeus Mozart; Ludwig van Beethoven; Frederic Chopin; Louis Armstrong; William
Shakespeare; Jane Austen; Leo Tolstoy; Virginia Woolf; Socrates; Confucius; Immanuel Kant; Mahatma Gandhi; Nelson
Mandela; Martin Luther King; Abraham Lincoln; Napoleon; Queen Victoria; Marco Polo; Ferdinand Magellan; James Cook;
Roald Amundsen; Amelia Earhart; Neil Armstrong; Florence Nightingale
""")
SITUATIONS = _list("""
my neighbour plays loud music at night; I cannot concentrate in the afternoon; my best friend is moving abroad; I
have two job offers; I always arrive late; my child does not want to eat vegetables; I feel nervous before speaking;
my laptop battery drains quickly; I spend too much on take-away food; I want to read more books; my plants keep
dying; I forgot an important birthday; I am new in town; my colleague takes credit for my work; I want to learn a
language in six months; I have an exam in three days; my room is small and dark; I am afraid of flying; I cannot
sleep when it is hot; I want to start a small business; my dog barks at visitors; I have to give a toast at a
wedding; I lost my wallet on holiday; I want to get fit without a gym; my team disagrees about a deadline; I want to
eat less sugar; I need to choose a first camera; my bicycle was stolen; I have to move in two weeks; I feel bored at
weekends; I want to write a novel; my grandparents want to use a tablet
""")
REVIEWS = _list("""
The room was clean and the staff remembered our names; The kettle leaked after two days and nobody answered my
e-mails; The plot was thin, but the music carried the film; Fast delivery, good quality, fair price; I waited forty
minutes for a cold sandwich; A charming little café with wobbly chairs; The lecture was hard to follow and far too
long; Great shoes, but order one size larger; The app crashes whenever I open the map; My children loved every
minute of the show; The guide knew a lot and spoke clearly; It is neither good nor bad, just an ordinary lamp
""")
SYSTEMS = [
    "You are a helpful assistant.",
    "You are a helpful AI assistant. Answer briefly.",
    "You are a patient teacher who explains things step by step.",
    "You are a careful editor.",
    "You are an experienced programmer. Give working code and a short explanation.",
    "You are a friendly assistant named SmolLM.",
    "Answer in plain English, in a few sentences.",
    "You are an assistant for everyday questions. If you are not sure, say so.",
    "You write stories for children.",
    "You are a concise assistant that prefers lists.",
]
