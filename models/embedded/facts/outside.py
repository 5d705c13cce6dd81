# ruff: noqa: E501 -- a tip stays on its line, and so do questions that belong together
"""Questions and requests beyond what the model is taught; to all of them it answers that it does not know.

The slots in braces are filled by `skills/outside.py`. The HELD tables never enter the training corpus.
"""

__all__ = [
    "DEEDS", "HELD_OUTSIDE", "HELD_OUTSIDE_TEMPLATES", "MOST", "NOUNS", "OUTSIDE", "OUTSIDE_GRAMMAR", "OUTSIDE_TEMPLATES",
    "PLURALS", "VERBS",
]  # fmt: skip

NOUNS = tuple(
    """
bridge|tunnel|ship|dog|insect|tree|company|university|library|train station|airport|church|castle|market|garden|forest
|cave|volcano|beach|road|town|village|school|hospital|band|singer|actor|writer|painter|painting|novel|poem|opera|team
|game|toy|engine|machine|rocket|satellite|star|galaxy|comet|stone|metal|flower|mushroom|apple|wine|beer|cheese|sauce
|language|alphabet|word|law|war|battle|treaty|king|queen|emperor|pirate|detective|song|dance|sport|record|prize|law firm
|bank|tax|coin|stamp|flag|hat|shoe|dress|ring|knife|bottle|clock|mirror|sofa|bed|window|roof|tower|wheel|battery|muscle
|tooth|nerve|disease|medicine|vitamin|nut|spice|fish|bird|reptile|fossil|crystal|website|password|file|keyboard|spider
|program|language model|database|robot|drone|camera|lens|radio|newspaper|festival|holiday|wedding|recipe|diet|habit
""".replace("\n", "").split("|")
)
PLURALS = tuple(
    """
books|people|soldiers|lakes|rivers|mountains|cities|states|schools|hospitals|cars|trains|ships|birds|insects|trees|flowers
|teeth|muscles|hairs|cells|atoms|letters|words|songs|films|albums|goals|games|players|fans|members|workers|children
|brothers|wives|houses|rooms|windows|doors|floors|bridges|museums|churches|castles|kings|queens|wars|battles|laws|coins
|apples|eggs|bottles|cups|grams|miles|stars|galaxies|comets|planes|rockets|robots|languages|stamps|holidays|trophies
""".replace("\n", "").split("|")
)
VERBS = tuple(
    """
fix|clean|paint|build|sell|buy|open|close|wash|cut|cook|bake|grow|move|carry|break|throw|catch|draw|write|read|sing|hide
|find|lose|borrow|rent|install|remove|update|measure|weigh|count|sort|print|scan|send|cancel|book|order|choose|train|feed
|teach|learn|forget|remember|improve|test|charge|drive|ride|fly|sail|park|decorate|assemble|upgrade|photograph|polish
""".replace("\n", "").split("|")
)
DEEDS = tuple(
    """
painted|composed|designed|built|destroyed|won|stole|sold|sang|filmed|discovered|invented|wrote|directed|founded|bought
|killed|married|taught|trained|broke|opened|closed|named|drew|planned|financed|produced|published|translated|ruled|led
""".replace("\n", "").split("|")
)
MOST = tuple(
    """
best|worst|oldest|newest|biggest|largest|smallest|tallest|longest|shortest|fastest|slowest|heaviest|lightest|richest
|poorest|most famous|most expensive|cheapest|most beautiful|rarest|strongest|loudest|brightest|darkest|safest|first|last
|most popular|most dangerous|deepest|widest|thinnest|highest|hottest|coldest|sharpest|sweetest|youngest
""".replace("\n", "").split("|")
)

OUTSIDE_GRAMMAR = tuple(
    """
What is the {most} {noun}?|What is the {most} {noun} in the world?|Which is the {most} {noun}?|Which {noun} is the {most}?
What is the {most} {noun} of {country}?|What is the {most} {noun} in {place}?|What was the {most} {noun}?
Name the {most} {noun}.|Tell me the {most} {noun}.|What is the {most} {noun} ever?|Who has the {most} {noun}?
Who {done} the {noun}?|Who {done} the {most} {noun}?|Who {done} {book}?|Who {done} {word}?|When was the {noun} {done}?
Where was the {noun} {done}?|Why was the {noun} {done}?|Who {done} the first {noun}?|When was the first {noun} {done}?
How do I {do} a {noun}?|How do I {do} my {noun}?|How do you {do} a {thing}?|Can you {do} a {noun}?|Please {do} the {noun}.
How can I {do} {plural}?|When should I {do} my {thing}?|What do I need to {do} a {noun}?|Why should I {do} {plural}?
Is it hard to {do} a {noun}?|Where can I {do} a {noun}?|Should I {do} the {noun}?|{do} the {noun} for me.|Help me {do} a {noun}.
How many {plural} are there?|How many {plural} are in {place}?|How many {plural} does {country} have?|How many {plural} are in a {noun}?
How many {plural} did {person} have?|How many {plural} belong to {name}?|How many {plural} has {country}?|How many {plural} are part of {place}?|How many {plural} belong to the {noun}?|How many {plural} are there in {country}?|How many {plural} does a {noun} have?
How many {plural} can a {noun} {do}?|How many {plural} does {name} own?|How many {plural} fit in a {noun}?
What is a {noun}?|What is the {noun}?|What are {plural}?|Why do {plural} {do}?|Do {plural} {do}?|Can {plural} {do} a {noun}?
Where do {plural} come from?|Why are {plural} {adjective}?|Are {plural} {adjective}?|Is the {noun} {adjective}?
How {adjective} is the {noun}?|Why is my {noun} so {adjective}?|Is a {noun} bigger than a {thing}?|What makes a {noun} {adjective}?
How long does a {noun} last?|How much is a {noun}?|How old is the {noun}?|How big is a {noun}?|How fast is a {noun}?
How high is the {noun}?|How heavy is a {noun}?|How does a {noun} work?|How does the {noun} {do} {plural}?|How are {plural} made?
Where is my {noun}?|Where is the {noun}?|Where can I find a {noun}?|Where was {person} when the {noun} was {done}?
Which {noun} should I {do}?|Which {noun} is good for {topic}?|Which {job} can {do} my {noun}?|Which {plural} are {adjective}?
What is the price of a {noun}?|What is the size of a {noun}?|What is the name of my {noun}?|What is the name of the {noun}?
What is the color of the {noun}?|What is the secret of {topic}?|What is the purpose of a {noun}?|What is the opposite of {adjective}?
What is the age of the {noun}?|What is the future of {topic}?|What is the smell of {food}?|What is the sound of a {noun}?
What does a {job} do?|How much does a {job} earn?|How do I become a {job}?|Can you recommend a {job}?|Is {name} a {job}?
What did the {job} say?|What did {person} {do}?|What happens if I {do} a {noun}?|What happened to the {noun}?|Is there a {noun} in {place}?
When did the {noun} open?|When does the {noun} {do}?|When is the {noun}?|When will the {noun} be {adjective}?|Where is the {job}?
Why does the {noun} {do}?|Why did {person} {do} the {noun}?|Will the {noun} be {adjective}?|Would {person} {do} a {noun}?
Write a {noun}.|Write about {plural}.|Write a review of the {thing}.|Make a {noun}.|Show me a {noun}.|Give me a {noun}.|Bring me a {noun}.
Convert {small} {plural} to {plural}.|Translate {adjective} to {word}.|Describe a {noun}.|Explain the {noun}.|Invent a {noun}.
My {noun} is {adjective}. What should I do?|I lost my {noun}.|I want to {do} a {noun}.|The {noun} is {adjective}.|We need a {noun}.
""".replace("\n", "|")
    .strip("|")
    .split("|")
)

OUTSIDE_TEMPLATES = tuple(
    """
What is the population of {country}?|How many people live in {country}?|What is the currency of {country}?
Who is the president of {country}?|Who is the prime minister of {country}?|What language do people speak in {country}?
What is the national anthem of {country}?|What does the flag of {country} look like?|When was {country} founded?
How big is {country}?|What is the area of {country}?|What is the national animal of {country}?
What food is {country} famous for?|What is the weather like in {place}?|What time is it in {place}?
How do I get from {place} to {place}?|How far is {place} from {place}?|Which hotel is best in {place}?
What is the best restaurant in {place}?|How many people live in {place}?|What is the population of {place}?
Who is the mayor of {place}?|Book me a flight to {place}.|When is the next train to {place}?
Is it raining in {place}?|What is the longest river in {country}?|What is the highest mountain in {country}?
What is the second largest city in {country}?|Who won the election in {country}?|Which countries border {country}?
What is the history of {country}?|What is the capital of {fiction}?|Which continent is {fiction} in?
What is the phone code of {country}?|Do I need a visa for {country}?|What is the tallest building in {place}?
Who wrote {book}?|Who is the author of {book}?|What is {book} about?|When was {book} published?
Who directed {book}?|How does {book} end?|Summarize the plot of {book}.|Who is the main character of {book}?
Who was {person}?|Who is {person}?|When was {person} born?|When did {person} die?|Where was {person} born?
How old is {person}?|What did {person} discover?|What is {person} famous for?|Who is {person} married to?
Tell me about {person}.|How rich is {person}?|What did {person} say about {topic}?|Is {person} still alive?
Who founded {company}?|Who is the head of {company}?|What does {company} make?|Where is {company} based?
What is the share price of {company}?|How many people work at {company}?|When was {company} founded?
Should I buy shares of {company}?|How much money does {company} make?|What is the newest product of {company}?
What is {topic}?|Explain {topic}.|Can you explain {topic}?|How does {topic} work?|Why is {topic} important?
Who invented {topic}?|Tell me about {topic}.|Tell me something about {topic}.|Write an essay about {topic}.
Write a poem about {topic}.|Give me a definition of {topic}.|What do you think about {topic}?
What is the history of {topic}?|What are the causes of {topic}?|Where can I learn about {topic}?
What do you know about {topic}?|What is the difference between {topic} and {topic}?|Write a song about {topic}.
How long does a {animal} live?|What do {animal}s eat?|How fast is a {animal}?|How much does a {animal} weigh?
Why do {animal}s sleep?|How many legs does a {animal} have?|Where do {animal}s live?|Can a {animal} swim?
What sound does a {animal} make?|Write a story about a {animal}.|Is a {animal} dangerous?
How do I cook {food}?|What is the recipe for {food}?|How many calories are in {food}?|Is {food} healthy?
Where can I buy {food}?|Who invented {food}?|How do you make {food}?|Why do people like {food}?
Who won the {sport} world cup in {year}?|What are the rules of {sport}?|Who is the best {sport} player?
How many players are in a {sport} team?|Who is the world champion in {sport}?|How do I get better at {sport}?
What happened in {year}?|Who was president in {year}?|What was the best film of {year}?|Who was born in {year}?
Who won the Nobel Prize in {year}?|What was invented in {year}?|Which song was popular in {year}?
How much does a {thing} cost?|Where can I buy a {thing}?|How do I repair a {thing}?|Who invented the {thing}?
Which {thing} should I buy?|How does a {thing} work?|What is the best {thing}?|How heavy is a {thing}?
Draw me a {thing}.|Design a {thing} for me.|Where did I leave my {thing}?|Sell me a {thing}.
Translate {food} into French.|How do you say {animal} in Spanish?|Translate "{thing}" to German.
What is the Italian word for {animal}?|What rhymes with {animal}?|What does {word} mean?|Who is {name} {word}?
What is {word}?|What is a {word}?|Where is {word}?|Define {word}.|How do I {word} a {word}?|Why is {word} so {word}?
Tell me about {word}.|What is the capital of {word}?|What is the symbol for {word}?|Who invented {word}?
What is the chemical symbol for {food}?|What is the chemical formula of {food}?|What is the IP address of {company}?
What is the IP address of {word}?|What is the boiling point of {element}?|What is the density of {element}?
Who discovered {element}?|What color is {element}?|How hard is {element}?|Who uses {element}?|Where is {element} found?|Is {element} a metal?
How heavy is {element}?|When was {element} discovered?|Why is {element} {adjective}?|What does {element} look like?|What color is a {noun}?
What is the melting point of {element}?|What is the taste of {element}?|What color is {planet}?|What shape is {element}?|What color is the {noun}?
How old is {element}?|What is made of {element}?|Which country has the most {element}?|What does {element} smell like?|How big is {planet}?
What is the mass of {planet}?|Who named {planet}?|Can we live on {planet}?|What color are {animal}s?|What color is my {thing}?|How large is a {noun}?
How much does {element} cost?|What is {element} used for?|Is {element} poisonous?
How many moons does {planet} have?|How far away is {planet}?|How hot is {planet}?|Who discovered {planet}?
How long is a day on {planet}?|Is there life on {planet}?|What is the weather on {planet}?
How long is {great}?|How high is {great}?|How old is {great}?|How deep is {great}?|Where is {great}?
Who discovered {great}?|Who first climbed {great}?|How did {great} get its name?
What is {big} * {big}?|What is {big} + {big}?|What is {big} divided by {small}?|What is {big} - {big}?
What is the square root of {big}?|What is {small} % of {big}?|Is {big} a prime number?|What is {small} to the power of {small}?
What is the meaning of the name {name}?|How old is {name}?|Where does {name} live?|What is the phone number of {name}?
What did {name} do on {day}?|What should I do on {day}?|What will the weather be like on {day}?
What will happen in {month}?|What is the best place to visit in {month}?|Which holidays are in {month}?
Why is {day} called {day}?|Why does {month} have {small} days?|What date is it?|What is on TV on {day}?
Write code that sorts {thing}s.|Write a program in Python about {topic}.|Write an email to {name} about the {thing}.
Send a message to {name}.|Call {name}.|Play a song by {person}.|Set an alarm for {small} o'clock.
Remind me to buy {food} on {day}.|Show me a picture of {animal}s.|Turn on the {thing}.|Order {food} for me.
""".replace("\n", "|")
    .strip("|")
    .split("|")
)

OUTSIDE = tuple(
    """
What is the meaning of life?|Why is the sky blue?|How do airplanes fly?|What is the speed of light?
Who was the first man on the moon?|When did World War II end?|How many bones are in the human body?
What is the weather today?|What time is it?|What day is today?|Who will win the next election?
What is the price of gold today?|How do I tie a tie?|Why do cats purr?|What came first, the chicken or the egg?
How many stars are in the sky?|What is the answer to everything?|Can you sing?|Can you dance?|Do you love me?
Are you alive?|What did you eat today?|Where do babies come from?|How do I become rich?|Should I marry him?
Will it rain tomorrow?|What are tomorrow's lottery numbers?|What is the best programming language?
How do I center a div?|How do I install Linux?|What is the newest phone?|Who painted the Mona Lisa?
Who composed the Ninth Symphony?|Who discovered America?|What year did the Berlin Wall fall?
When was the first computer built?|How does the heart work?|What causes cancer?|How do I lose ten pounds?
What should I wear today?|What is on my desk?|Where are my keys?|What am I thinking?|Who am I looking at?
How tall am I?|What is my password?|What is my mother's name?|How much money do I have?|What did I dream last night?
Recommend a good movie.|Recommend a good book.|Suggest a gift for my wife.|Plan a trip for me.|Plan my wedding.
Write a haiku.|Write a letter to my landlord.|Write a speech.|Write me a love letter.|Compose a melody.
Solve x squared plus x minus six.|Prove the theorem of Pythagoras.|What is the integral of sine?|What is pi?
What is the derivative of x squared?|How many digits does pi have?|What is infinity?|What is zero divided by zero?
How does a car engine work?|How do magnets work?|Why is the grass green?|Why do leaves fall?|Why do we dream?
What is dark matter?|How old is the universe?|How big is the universe?|Are there aliens?|Is God real?
What happens after death?|Who built the pyramids?|Why did Rome fall?|Who was the last emperor?|Who started the war?
Who is the richest man in the world?|Who is the most famous singer?|Who is the king of England?
Who is the pope?|What is the latest news?|What happened yesterday?|What is trending now?|Who won last night?
What is the score of the game?|How do I fix my car?|How do I open this file?|How do I change a tire?
How do I remove a stain?|How do I get a job?|How do I write a resume?|How do I ask for a raise?|How do I meditate?
How do I learn French?|How do I play the guitar?|How do I draw a horse?|How do I grow tomatoes?|How do I bake bread?
Is it safe to eat raw eggs?|Can I take aspirin with wine?|What is the cure for the flu?|Do I have a fever?
What is a noun?|What is a metaphor?|What is irony?|How do you spell necessary?|What is the plural of mouse?
What does LOL mean?|What is a meme?|What is a black swan?|What is the golden rule?|What is common sense?
How long is a football match?|How high can a kangaroo jump?|How deep can whales dive?|Do fish sleep?|Can pigs fly?
Why is the sea salty?|Where does the wind come from?|How is snow made?|What makes thunder?|How do bees make honey?
How many languages are there?|How many people are there on Earth?|How many countries are there?
How many cars are in the world?|How many books did you read?|How many tennis balls fit in a bus?
What is the tallest tree?|What is the oldest tree?|What is the rarest stone?|What is the hardest material?
What is the longest word?|What is the oldest book?|What is the best song ever?|What is the worst film ever?
What is the fastest car?|What is the most expensive watch?|What is the heaviest metal?|Which country is the richest?
What is the best city to live in?|Where should I go on holiday?|Which bank is the best?|Which team will win?
When is Easter?|When is the next full moon?|When does the shop open?|When is your birthday?|When is the bus coming?
Where is the nearest pharmacy?|Where can I park?|Where is the exit?|Where do penguins live?|Where is the treasure?
Who let the dogs out?|Who killed Kennedy?|Who is your favorite actor?|Who is at the door?|Who invented the wheel?
Who wrote the Bible?|Who sang Yesterday?|Who owns the moon?|Who made the first map?|Who is the strongest hero?
Fix the bugs in my code.|Draw a map.|Open the window.|Delete all my files.|Buy me a coffee.|Clean the kitchen.
Translate this sentence into Spanish.|Translate good morning to Japanese.|Say something in Latin.
Give me a recipe.|Give me some money.|Give me the news.|Give me a riddle.|Give me directions.|Give me advice.
Explain the rules.|Explain the joke.|Explain yourself.|Explain it like I am five.|Describe the ocean.|Describe a dream.
Is a tomato a fruit?|Is it true that bats are blind?|Is this poisonous?|Is the earth flat?|Is coffee bad for you?
Should I invest in gold?|Should I quit my job?|Would you rather fly or swim?|Could you drive a truck?
What kind of music do you like?|What are your hobbies?|What is your favorite color?|What is your favorite food?
What is the stock market doing?|What is the unemployment rate?|What is the minimum wage?|What is the tax rate?
What is the difference between a crocodile and an alligator?|What is the difference between tea and coffee?
What are the symptoms of a cold?|What are the rules of poker?|What are the seven wonders?|What are carbohydrates?
What is the boiling point of water?|What is absolute zero?|What is the formula for water?|What is a prime number?
What is the circumference of the Earth?|What is the distance to the Moon?|What is the mass of an electron?
How fast does sound travel?|How fast can a human run?|How cold is space?|How strong is a gorilla?|How loud is a jet?
How much does the Earth weigh?|How much is a gallon?|How much is a pound in kilograms?|How many feet are in a mile?
How many minutes are in a year?|How many teeth do sharks have?|How many keys does a piano have?
""".replace("\n", "|")
    .strip("|")
    .split("|")
)

HELD_OUTSIDE_TEMPLATES = tuple(
    """
What religion do people follow in {country}?|How many islands belong to {country}?|Name a famous singer from {country}.
What is the crime rate in {place}?|Which airport is closest to {place}?|Is {place} expensive?
Who illustrated {book}?|Where did {person} go to school?|What was the childhood of {person} like?
Has {company} ever been sued?|Which software does {company} use?|What are the advantages of {topic}?
How would you teach {topic} to children?|Do {animal}s make good pets?|Which wine goes with {food}?
How popular is {sport}?|What did people wear in {year}?|How do I clean a {thing}?|What colour is {element}?
How large is {planet}?|Is {great} dangerous?|What is the cube of {big}?|Why was {name} late on {day}?
What flowers bloom in {month}?|Is a {word} bigger than a {word}?
""".replace("\n", "|")
    .strip("|")
    .split("|")
)

HELD_OUTSIDE = tuple(
    """
Who painted The Starry Night?|How do vaccines work?|What is the tallest statue?|Who invented the telephone?
When did the Titanic sink?|What is the largest stadium?|How do I unlock my phone?|Why do people yawn?
What is the best way to boil an egg?|Who was the first woman in space?|How many strings does a violin have?
What is the speed of a bullet?|Which vitamin is in oranges?|How do submarines work?|What is the theory of relativity?
Who is the president?|What is the square of the hypotenuse?|Where is my order?|Can you recommend a dentist?
What is the wifi password?|Write a limerick.|Write a business plan.|Tell me a secret.|How is cheese made?
What is the exchange rate of the dollar?|Who wrote the national anthem?|How long does it take to fly to the moon?
What was the first film ever made?|Is chocolate good for dogs?|Which shoes should I buy?|Do trees feel pain?
What is an algorithm?|How do I delete my account?|When does summer start?|How do I fold a paper plane?
Who is the fastest runner in history?|What is the smallest bone in the body?|How does a microwave oven work?
Why do onions make you cry?|What is the secret of a happy marriage?|Which planet would you live on?
How many chapters does the book have?|Where was pizza invented?|What is the temperature outside?
Convert ten miles to kilometres.|Translate thank you to Italian.|Compose an email to my boss.|Find me a flat.
What is your shoe size?|How many dinosaurs were there?
""".replace("\n", "|")
    .strip("|")
    .split("|")
)
