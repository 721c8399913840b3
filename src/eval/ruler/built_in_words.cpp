/// Common words for RULER's tasks where no lists are given. All are also in the lists that RULER
/// uses, and so none is among the words of planted training tasks (python/lca/data/words.py).

#include "eval/ruler/words.h"

#include <string_view>

namespace lca::eval {
namespace {

constexpr std::string_view kRulerNouns =
    "account acorn actor address advice afternoon agency airport album alley almond amount "
    "analysis angle animal ankle answer ant apartment apple apricot apron arch area arena "
    "argument arm army arrow art article artist attic aunt author autumn avenue avocado baby "
    "back bacon badge bag bakery balance balcony ball balloon bamboo banana band bank bar barn "
    "base basement basil basin basket bath battery beach bead bean bear beard beast beauty bed "
    "bee beetle beginning behavior belief bell belt bench bicycle bird birth biscuit blanket "
    "block blood blouse board boat body bone bonus book boot border boss bottle bottom bowl box "
    "boy brain branch bread breakfast breath brick bridge brother brush bucket budget building "
    "bulb bull bus bush business butter butterfly button cabbage cabin cabinet cable cafe cake "
    "calendar camel camera camp canal candle candy canoe canvas cap cape capital captain car "
    "card career carpet carrot cart castle cat catalog cause cave ceiling celery cell cellar "
    "cement center century ceremony chain chair chalk challenge chance channel chapter charity "
    "chart cheek cheese cheetah chef cherry chess chest chicken chief child chin chocolate "
    "choice church circle citizen city clarinet class classroom clay climate clinic clock cloth "
    "cloud clover club coach coal coast coat cobweb coconut coffee coin collar college color "
    "column comb comedy comfort command comment committee community company compass computer "
    "concert condition conference contest context contract conversation cook cookie copper copy "
    "corn corner cost cottage cotton couch country county couple course court cousin cow crab "
    "cradle craft cream creek crew cricket crocodile crop crow crowd crown culture cup cupboard "
    "curtain curve cushion customer cycle dad daisy damage dance danger data date daughter day "
    "debt decade decision deer degree delivery demand dentist department depth desert design "
    "desk dessert detail diamond diary dictionary diet difference dinner direction dirt "
    "disaster discovery discussion dish distance doctor dog doll dollar dolphin donkey door "
    "dragon drama drawer drawing dream dress drink driver drum duck dust duty eagle ear earth "
    "east edge editor education effect effort egg elbow election elephant elevator emotion "
    "employee end energy engine engineer entrance envelope environment episode equipment error "
    "essay estate evening event example exchange excuse exercise expert explanation eye fabric "
    "face fact factory failure family fan farm farmer fashion father fault feather feature "
    "feedback feeling fence ferry festival fiber fiction field fig figure film finger fire fish "
    "flag flame flavor flight floor flour flower flute focus fog food foot football force "
    "forest fork form fortune fountain fox frame freedom friend frog front fruit fuel function "
    "funeral fur furniture future gallery game garage garden garlic gas gate gather gear gender "
    "giraffe girl glass glove glue goal goat gold goose grade grain grandfather grandmother "
    "grape grass gravel gravy ground group growth guest guide guitar gym habit hair hall hammer "
    "hand handle harbor harp hat hawk head health heart heat heaven hedge heel height "
    "helicopter helmet hen hero hill hip hobby hockey hole holiday home honey hood hook horse "
    "hospital host hotel hour house housing human humor hunter husband ice idea image impact "
    "impulse income industry ink insect inside instance insurance interest invention iron "
    "island issue item jacket jail jam jar jaw jewel job joke journal journey judge juice "
    "jungle jury kangaroo kettle key kick kid kidney kind king kitchen kite kitten knee knife "
    "knight knot knowledge label lace ladder lady lake lamb lamp land language laptop law lawn "
    "lawyer layer lead leader leaf league leather lecture leg lemon lemonade length lesson "
    "letter lettuce level library lid life light lily limit line lion lip list literature "
    "lizard loaf loan lobster location lock log loss love luck lunch lung machine magazine "
    "magic magnet maid mail mall man manager map maple marble market mask mass master match "
    "material matter mayor meadow meal meaning measure meat medicine meeting melody member "
    "memory menu message metal method mile milk mill mind mine minister minute mirror mission "
    "mistake mix model moment money monkey month mood moon morning mother motion motor mountain "
    "mouse mouth movie mud muscle museum mushroom music mustard nail name napkin nation nature "
    "neck need needle neighbor nephew nerve nest net network news night noise north nose note "
    "notebook novel number nurse nut oak oatmeal object ocean octopus office oil olive onion "
    "opera opinion orange orchestra orchid order organ outcome outside oven owl owner ox oxygen "
    "oyster pack page pain paint palace pan pancake panda panel panic pants paper parade parcel "
    "parent park parrot part partner party passenger passion past pasta paste path patience "
    "pattern pea peace peach peanut pear pedal pen pencil penguin people pepper percentage "
    "performance period permission person phase philosophy phone photo piano picture pie piece "
    "pig pigeon pillow pilot pin pine pipe pizza place plan plane planet plant plastic plate "
    "platform player pleasure plot plow pocket poem poet poetry point police policy pollution "
    "pond pony pool population porch position possession post pot potato pottery powder power "
    "presence present president pressure price prince principle printer priority prison prize "
    "problem process produce product profession profit program project promise proof property "
    "proposal protection psychology pumpkin punishment puppy purpose purse puzzle quality "
    "quarter queen question quilt quiver rabbit radio radish rail railway rain rainbow range "
    "rat rate ratio raven reaction reading reality reason receipt recipe record recording "
    "reflection refrigerator region relation relationship religion rent reply report republic "
    "request requirement research resolution resource response restaurant result revenue review "
    "reward rhythm rice ring risk river road robin rock rocket role roll roof room root rope "
    "rose route row rule safety sail sailor salad salary sale salmon salt sample sand sandal "
    "sandwich sauce saw scale scarecrow scarf scene scent school science scientist scissors "
    "screen screw sculpture sea search season seat second secret secretary section sector seed "
    "selection self sense sentence series service session setting shade shadow shape share "
    "shark sheep sheet shelf shell shield ship shirt shock shoe shop shore shoulder shovel show "
    "shower side sidewalk sign signature silk silver singer sink sister site situation size "
    "skill skin skirt sky sleep sleet slope smell smile smoke snail snake snow soap society "
    "sock sofa software soil soldier solution son song sound soup source south space spade "
    "spark speaker speech speed spider spinach spirit sponge spoon sport spot spring spy square "
    "squirrel stable stadium staff stage stamp standard star start state statement station "
    "statue status steak steam steel stem step stew stick stitch stock stomach stone stop store "
    "storm story stove stranger strategy strawberry stream street strength stress stretch "
    "string structure student studio study style subject substance success sugar suggestion "
    "suit summer sun surface surgery surprise survey sweater swim swing switch sword symbol "
    "syrup system table tail talent tank tape target task taste tax taxi tea teacher team "
    "technology television temper temperature temple tennis tension tent term test text thanks "
    "theater theme theory thing thought thread throat throne thumb thunder ticket tie tiger "
    "time tin tip tire title toad toast toe toilet tomato tongue tool tooth top topic total "
    "touch tower town toy track trade tradition traffic trail train tray treatment tree trick "
    "trip trouble trousers truck trumpet trust truth tub tube tulip tune turkey turn turtle "
    "twig type umbrella uncle understanding uniform union unit university user vacation valley "
    "value van variation variety vase vegetable vehicle veil version vessel vest victory video "
    "view village violin virus visitor voice volcano volume voyage waist waiter walk wall "
    "walnut war warning wash wasp watch water wave wax way wealth weapon weather web wedding "
    "week weekend weight west whale wheat wheel whip whistle wife wind window wine wing winner "
    "winter wire wish wolf woman wonder wood wool word work worker world worm wound wrench "
    "wrist writer writing yak yard yarn year youth zebra zipper zoo";

constexpr std::string_view kRulerAdjectives =
    "absent absurd adorable afraid aggressive agreeable alert alive amused ancient angry "
    "annoyed anxious ashamed attractive average awake awful bad bashful beautiful better big "
    "bitter black blue boiling bored boring brave brief bright broad broken brown bumpy busy "
    "calm careful cautious charming cheerful chubby clean clear clever cloudy clumsy cold "
    "colorful combative comfortable common concerned confused cool cooperative correct "
    "courageous cowardly crazy creepy crooked cruel curious curly curved cute damp dangerous "
    "dark dead deep defeated defiant delicious delightful different difficult dirty disgusted "
    "distinct disturbed dizzy doubtful drab dry dull dusty eager early easy elated elegant "
    "embarrassed empty enchanting encouraging energetic enthusiastic envious equal evil "
    "excellent excited expensive fair faithful familiar famous fancy fantastic fast fat few "
    "fierce filthy fine flat fluffy foolish fragile frail frantic fresh friendly frightened "
    "full funny gentle giant gifted glamorous glorious good gorgeous graceful greasy great "
    "greedy green grieving grumpy guilty handsome happy hard harsh healthy heavy helpful "
    "helpless high hilarious hollow homely horrible hot huge hungry icy ill important "
    "impossible inexpensive innocent inquisitive itchy jealous jittery jolly joyous juicy kind "
    "large late lazy light little lively lonely long loose loud lovely low lucky magnificent "
    "many massive melodic misty modern motionless muddy mushy mysterious narrow nasty naughty "
    "nervous new nice noisy nutty obedient obnoxious odd old open outrageous outstanding "
    "perfect plain pleasant poised poor powerful precious prickly proud quaint quick quiet "
    "rapid rare real relieved repulsive rich ripe robust rotten rough round sad salty selfish "
    "shaggy shaky shallow sharp shiny short shy silent silky silly sleepy slimy slippery slow "
    "small smiling smooth soft solid sore sour sparkling spicy splendid spotless square steep "
    "sticky stormy straight strange strong stupid successful super sweet swift talented tall "
    "tame tart tasty tender tense terrible thankful thirsty thoughtful tight tiny tired tough "
    "tricky ugly unusual upset vast victorious vivacious wandering warm weak wealthy weary wet "
    "wicked wide wild wise witty wonderful wooden worried wrong young yummy zealous";

constexpr std::string_view kRulerVerbs =
    "accept achieve act add admire admit advise agree allow appear approve argue arrive ask "
    "attach attack attempt avoid bake bathe battle beg begin behave bend bite bless blink blow "
    "blush boil borrow bounce bow breathe bring build burn buy calculate call care carry carve "
    "catch change charge chase cheat check cheer chew choose clap clean clear climb cling close "
    "collect comb come command compare compete complain complete concentrate confess confuse "
    "connect consider contain continue correct cough count cover crash crawl create cross cry "
    "cure cut damage dance dare deal decay deceive decide decorate delay deliver depend "
    "describe deserve destroy detect develop disagree disappear discover dislike divide double "
    "doubt drag draw dream dress drink drip drive drop drown earn eat educate embarrass employ "
    "empty encourage end enjoy enter entertain escape examine excite excuse exercise exist "
    "expand expect explain explode extend fade fail fall fasten feed feel fetch fight fill find "
    "fit fix flash float flood flow fly fold follow forbid forget forgive freeze frighten fry "
    "gather gaze get give glow grab grate greet grin grip groan grow guarantee guess guide hand "
    "hang happen harm hate haunt heal hear heat help hide hit hold hop hope hover hug hunt "
    "hurry hurt identify ignore imagine impress improve include increase influence inform "
    "inject injure instruct intend interfere interrupt introduce invent invite irritate itch "
    "jog join joke judge juggle jump keep kick kiss kneel knit knock know laugh launch lay lead "
    "learn leave lend let level lick lie lift like listen live load lock look lose love make "
    "manage march mark marry matter mean measure meet melt memorize mend mix moan mourn move "
    "multiply need nod note notice number obey observe obtain occur offend offer open order "
    "overflow owe own paint park pass paste pat pause pay peel permit persuade phone pick pinch "
    "plan plant play please point poke polish pop possess post pour practice praise pray preach "
    "prefer prepare present preserve press pretend prevent prick print produce promise protect "
    "provide pull punch punish push put question quit race rain raise reach read realize "
    "receive recognize record reduce reflect refuse regret reject rejoice relax release rely "
    "remain remember remind remove repair repeat replace reply report reproduce request rescue "
    "retire return rhyme ride ring rinse rise risk rob roll rot rub ruin rule run rush sail "
    "satisfy save say scare scatter scold scrape scratch scream scrub seal search see sell send "
    "separate serve settle sew shake share shave shelter shine shiver shock shoot shop show "
    "shrug shut sigh sign signal sing sink sip sit skip slap sleep slide slip slow smash smell "
    "smile snatch sneeze sniff snore snow soak soothe sound spare spark sparkle speak spell "
    "spend spill spin spit split spoil spot spray spread sprout squash squeak squeal squeeze "
    "stain stamp stand stare start stay steal steer step stir stop store strap strengthen "
    "stretch strike strip stroke stuff succeed suffer suggest suit supply support suppose "
    "surprise surround suspect suspend swear sweep swim swing switch take talk tame tap taste "
    "teach tear tease tell tempt terrify test thank think throw tickle tie time tip tire touch "
    "tour tow trace trade train transport trap travel treat tremble trick trip trot trouble "
    "trust try tug tumble turn twist type understand undress unite unlock unpack use vanish "
    "visit wail wait wake walk wander want warn wash waste watch water wave wear weep weigh "
    "welcome whine whip whirl whisper whistle win wink wipe wish wobble wonder work worry wrap "
    "wreck wrestle write yawn yell zoom";

std::vector<std::string> ruler_words_split(std::string_view text) {
  std::vector<std::string> words;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    words.emplace_back(text.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

}  // namespace

WordLists words_built_in() {
  return {ruler_words_split(kRulerNouns),
          ruler_words_split(kRulerAdjectives),
          ruler_words_split(kRulerVerbs),
          {},
          true};
}

}  // namespace lca::eval
