"""Words to fill sentences with: names, cities, things, and words of praise and blame."""

__all__ = [
    "ANIMALS", "BLAME", "BOOKS", "CITIES", "COLORS", "COMPANIES", "FOODS", "HELD_NAMES", "JOBS", "NAMES", "PEOPLE",
    "PRAISE", "SPORTS", "SYLLABLES", "THINGS", "TOPICS",
]  # fmt: skip

NAMES = tuple(
    """
Ann Ben Carla David Emma Frank Grace Hugo Ines Jack Karen Leo Maria Nina Oscar Paula Quentin Rosa Sam Tina Umar Vera
Will Xena Yusuf Zoe Alice Bob Charles Diana Erik Fatima George Hannah Ivan Julia Kofi Laura Marco Nora Olga Peter
Rita Simon Tara Victor Wendy Amir Bella Chen Dora Elias Fiona Gina Henry Iris James Kate Lena Mike Noah Olivia Priya
Rahul Sara Tom Uma Vikram Anna Lucas Mia Felix Clara Paul Eva Martin Sofia John Mary Linda Robert Susan Jessica
Thomas Lisa Aaron Abigail Adam Adele Agnes Albert Aldo Alma Amelia Anders Angela Anton Arthur Astrid Audrey Barbara
Basil Bernard Bianca Boris Bruno Camilla Carmen Caroline Casper Cecilia Celia Christian Claudia Cyril Dagmar Dennis
Dominic Doris Edgar Edith Edna Elena Elliot Elsa Emil Ernest Esther Eugene Felicia Ferdinand Flora Francis Gabriel
Georgia Gerald Gilbert Gloria Gordon Greta Guido Harold Harriet Hector Helen Herbert Hilda Howard Ingrid Irene Isaac
Isabel Jacob Jasmine Jerome Joan Josef Judith Juan Karl Kurt Lars Laurence Leon Lilian Louis Lucia Ludwig Lydia
Magda Marcel Margaret Mario Martha Matilda Maurice Max Miguel Miriam Monica Nadia Natalie Nicholas Nigel Norman Oleg
Oliver Oswald Pablo Patrick Pauline Pedro Philip Rachel Ralph Raymond Rebecca Regina Renate Richard Roland Rosalind
Ruth Sabine Samuel Sebastian Sergei Silvia Stella Sven Sylvia Theo Theresa Ulrich Ursula Valerie Vincent Viola
Walter Wilhelm Winston Yvonne Daniel Nancy Mark Sandra Steven Ashley Andrew Emily Joshua Michelle Kevin Amanda Brian
Melissa Edward Ronald Timothy
""".split()
)
HELD_NAMES = tuple("Beatrix Conrad Delia Gustav Helga Jonas Katrin Lorenzo Mabel Otto Petra Rupert".split())

JOBS = tuple(
    """
doctor|teacher|nurse|baker|lawyer|farmer|painter|pilot|singer|writer|engineer|chef|dentist|driver|gardener|plumber
|carpenter|journalist|librarian|photographer|scientist|student|waiter|tailor|mechanic|programmer|architect|actor
""".replace("\n", "").split("|")
)

CITIES = tuple(
    """
New York|Los Angeles|Chicago|Boston|Sydney|Melbourne|Toronto|Vancouver|Munich|Hamburg|Milan|Naples|Barcelona|Seville
|Lyon|Marseille|Mumbai|Kolkata|Shanghai|Shenzhen|Osaka|Kyoto|Istanbul|Lagos|Johannesburg|Cape Town|Zurich|Geneva
|Antwerp|Porto|Krakow|Rio de Janeiro|San Francisco|Seattle|Denver|Dallas|Miami|Liverpool|Manchester|Glasgow|Edinburgh
|Dubai|Karachi|Venice|Florence|Turin|Frankfurt|Cologne|Leipzig|Houston|Austin|Detroit|Bristol|Leeds|Salzburg
""".replace("\n", "").split("|")
)

COLORS = tuple("red blue green yellow orange purple pink black white brown grey turquoise violet golden".split())
ANIMALS = tuple(
    """
dog cat horse rabbit parrot turtle hamster elephant lion tiger dolphin penguin owl eagle wolf fox bear monkey frog
snake shark octopus bee ant spider cow sheep goat pig duck swan deer squirrel hedgehog camel kangaroo panda
""".split()
)
FOODS = tuple(
    """
pizza pasta rice bread cheese apples bananas soup salad chocolate cake sushi curry tacos pancakes potatoes tomatoes
noodles ice-cream cookies eggs fish chicken mushrooms strawberries honey yoghurt beans onions lentils waffles
""".split()
)
SPORTS = tuple("football tennis basketball hockey chess swimming golf cricket rugby volleyball boxing cycling".split())
THINGS = tuple(
    """
book film phone laptop hotel restaurant meal song concert game chair table car camera coat service room lamp kettle
bicycle ticket course lesson trip flight tour album show play museum park app website printer keyboard headset
backpack jacket watch
""".split()
)
TOPICS = tuple(
    """
gravity|photosynthesis|democracy|inflation|electricity|magnetism|evolution|quantum mechanics|the French Revolution
|the Cold War|black holes|machine learning|neural networks|the stock market|global warming|volcanoes|earthquakes
|the Renaissance|the Internet|blockchain|vaccines|antibiotics|the human heart|the brain|DNA|philosophy|opera|jazz
|football|chess|cooking|gardening|sailing|knitting|poetry|taxes|insurance|tides|rainbows|thunder|glaciers|dinosaurs
|the Roman Empire|the pyramids|Greek mythology|the Olympics|the Bible|Buddhism|Islam|Shakespeare|love|happiness|time
|space travel|rockets|satellites|robots|databases|compilers|operating systems|encryption|bacteria|viruses|atoms
""".replace("\n", "").split("|")
)

PEOPLE = tuple(
    """
Albert Einstein|Isaac Newton|Marie Curie|Napoleon|Julius Caesar|Cleopatra|Mozart|Beethoven|Picasso|Shakespeare
|Leonardo da Vinci|Galileo|Charles Darwin|Abraham Lincoln|George Washington|Winston Churchill|Gandhi|Nelson Mandela
|Elvis Presley|Michael Jackson|Madonna|Taylor Swift|Barack Obama|Angela Merkel|Queen Elizabeth|Steve Jobs|Bill Gates
|Elon Musk|Lionel Messi|Cristiano Ronaldo|Serena Williams|Roger Federer|Michael Jordan|Charlie Chaplin|Bob Dylan
|Alan Turing|Ada Lovelace|Aristotle|Plato|Socrates|Confucius|Buddha|Vincent van Gogh|Frida Kahlo|Neil Armstrong
""".replace("\n", "").split("|")
)

BOOKS = tuple(
    """
Hamlet|Macbeth|Romeo and Juliet|War and Peace|Moby Dick|Don Quixote|The Odyssey|Faust|The Hobbit|Dracula|Emma|Ulysses
|Pride and Prejudice|Crime and Punishment|The Great Gatsby|Frankenstein|Jane Eyre|The Lord of the Rings|Dune|1984
|Brave New World|The Trial|The Alchemist|Les Miserables|Oliver Twist|Treasure Island|Robinson Crusoe|Titanic|Avatar
|Star Wars|The Godfather|Casablanca|Jaws|The Matrix|Inception|Toy Story|The Lion King|Frozen|Psycho|Alien|Rocky
""".replace("\n", "").split("|")
)

COMPANIES = tuple(
    """
Apple Google Microsoft Amazon Tesla Toyota Samsung Sony IBM Intel Nvidia Netflix Siemens Volkswagen BMW Ikea Nestle
Boeing Airbus Spotify Adobe Oracle Nokia Lego Nintendo Disney Twitter Facebook OpenAI Walmart
""".split()
)

PRAISE = tuple(
    """
wonderful excellent great fantastic amazing lovely superb delightful brilliant perfect beautiful charming impressive
pleasant outstanding marvelous splendid enjoyable terrific comfortable friendly helpful delicious reliable fun good
nice awesome magnificent refreshing elegant clean fast exciting funny
""".split()
)
BLAME = tuple(
    """
terrible awful horrible bad boring disappointing dreadful poor ugly broken useless rude slow dirty annoying painful
noisy overpriced cheap weak dull sad frustrating disgusting unpleasant unreliable messy stupid ridiculous tedious
worthless cold clumsy late lousy
""".split()
)

# Names made of these teach the model to copy words that it has never met.
SYLLABLES = tuple(
    """
ba be bo da de do fa fi go ka ke ki ko la le li lo lu ma me mi mo mu na ne ni no pa pe po ra re ri ro ru sa se si so
ta te ti to tu va ve vi wa wi xa ya yo za ze zo bran cor del fen gar hol jen kel lan mor nor pel quin ros sil tor
ven wil
""".split()
)
