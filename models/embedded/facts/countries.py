"""Countries, their capitals and continents, and sights in some of the capitals."""

from typing import NamedTuple

__all__ = ["ALIASES", "ATTRACTIONS", "CONTINENTS", "COUNTRIES", "FAMOUS", "NOT_COUNTRIES", "Country"]


class Country(NamedTuple):
    """A country as a sentence names it, article included."""

    name: str
    capital: str
    continent: str


_AFRICA = """
Algeria|Algiers; Angola|Luanda; Benin|Porto-Novo; Botswana|Gaborone; Burkina Faso|Ouagadougou; Burundi|Gitega;
Cameroon|Yaounde; Cape Verde|Praia; the Central African Republic|Bangui; Chad|N'Djamena; the Comoros|Moroni;
the Democratic Republic of the Congo|Kinshasa; the Republic of the Congo|Brazzaville; Djibouti|Djibouti;
Egypt|Cairo; Equatorial Guinea|Malabo; Eritrea|Asmara; Eswatini|Mbabane; Ethiopia|Addis Ababa; Gabon|Libreville;
the Gambia|Banjul; Ghana|Accra; Guinea|Conakry; Guinea-Bissau|Bissau; Ivory Coast|Yamoussoukro; Kenya|Nairobi;
Lesotho|Maseru; Liberia|Monrovia; Libya|Tripoli; Madagascar|Antananarivo; Malawi|Lilongwe; Mali|Bamako;
Mauritania|Nouakchott; Mauritius|Port Louis; Morocco|Rabat; Mozambique|Maputo; Namibia|Windhoek; Niger|Niamey;
Nigeria|Abuja; Rwanda|Kigali; Sao Tome and Principe|Sao Tome; Senegal|Dakar; Seychelles|Victoria;
Sierra Leone|Freetown; Somalia|Mogadishu; South Africa|Pretoria; South Sudan|Juba; Sudan|Khartoum; Tanzania|Dodoma;
Togo|Lome; Tunisia|Tunis; Uganda|Kampala; Zambia|Lusaka; Zimbabwe|Harare
"""

_ASIA = """
Afghanistan|Kabul; Armenia|Yerevan; Azerbaijan|Baku; Bahrain|Manama; Bangladesh|Dhaka; Bhutan|Thimphu;
Brunei|Bandar Seri Begawan; Cambodia|Phnom Penh; China|Beijing; Cyprus|Nicosia; Georgia|Tbilisi; India|New Delhi;
Indonesia|Jakarta; Iran|Tehran; Iraq|Baghdad; Israel|Jerusalem; Japan|Tokyo; Jordan|Amman; Kazakhstan|Astana;
Kuwait|Kuwait City; Kyrgyzstan|Bishkek; Laos|Vientiane; Lebanon|Beirut; Malaysia|Kuala Lumpur; the Maldives|Male;
Mongolia|Ulaanbaatar; Myanmar|Naypyidaw; Nepal|Kathmandu; North Korea|Pyongyang; Oman|Muscat; Pakistan|Islamabad;
Palestine|Ramallah; the Philippines|Manila; Qatar|Doha; Saudi Arabia|Riyadh; Singapore|Singapore;
South Korea|Seoul; Sri Lanka|Sri Jayawardenepura Kotte; Syria|Damascus; Taiwan|Taipei; Tajikistan|Dushanbe;
Thailand|Bangkok; East Timor|Dili; Turkey|Ankara; Turkmenistan|Ashgabat; the United Arab Emirates|Abu Dhabi;
Uzbekistan|Tashkent; Vietnam|Hanoi; Yemen|Sanaa
"""

_EUROPE = """
Albania|Tirana; Andorra|Andorra la Vella; Austria|Vienna; Belarus|Minsk; Belgium|Brussels;
Bosnia and Herzegovina|Sarajevo; Bulgaria|Sofia; Croatia|Zagreb; the Czech Republic|Prague; Denmark|Copenhagen;
Estonia|Tallinn; Finland|Helsinki; France|Paris; Germany|Berlin; Greece|Athens; Hungary|Budapest; Iceland|Reykjavik;
Ireland|Dublin; Italy|Rome; Kosovo|Pristina; Latvia|Riga; Liechtenstein|Vaduz; Lithuania|Vilnius;
Luxembourg|Luxembourg; Malta|Valletta; Moldova|Chisinau; Monaco|Monaco; Montenegro|Podgorica;
the Netherlands|Amsterdam; North Macedonia|Skopje; Norway|Oslo; Poland|Warsaw; Portugal|Lisbon; Romania|Bucharest;
Russia|Moscow; San Marino|San Marino; Serbia|Belgrade; Slovakia|Bratislava; Slovenia|Ljubljana; Spain|Madrid;
Sweden|Stockholm; Switzerland|Bern; Ukraine|Kyiv; the United Kingdom|London; Vatican City|Vatican City
"""

_NORTH_AMERICA = """
Antigua and Barbuda|Saint John's; the Bahamas|Nassau; Barbados|Bridgetown; Belize|Belmopan; Canada|Ottawa;
Costa Rica|San Jose; Cuba|Havana; Dominica|Roseau; the Dominican Republic|Santo Domingo; El Salvador|San Salvador;
Grenada|Saint George's; Guatemala|Guatemala City; Haiti|Port-au-Prince; Honduras|Tegucigalpa; Jamaica|Kingston;
Mexico|Mexico City; Nicaragua|Managua; Panama|Panama City; Saint Kitts and Nevis|Basseterre; Saint Lucia|Castries;
Saint Vincent and the Grenadines|Kingstown; Trinidad and Tobago|Port of Spain; the United States|Washington, D.C.
"""

_SOUTH_AMERICA = """
Argentina|Buenos Aires; Bolivia|Sucre; Brazil|Brasilia; Chile|Santiago; Colombia|Bogota; Ecuador|Quito;
Guyana|Georgetown; Paraguay|Asuncion; Peru|Lima; Suriname|Paramaribo; Uruguay|Montevideo; Venezuela|Caracas
"""

_OCEANIA = """
Australia|Canberra; Fiji|Suva; Kiribati|Tarawa; the Marshall Islands|Majuro; Micronesia|Palikir; Nauru|Yaren;
New Zealand|Wellington; Palau|Ngerulmud; Papua New Guinea|Port Moresby; Samoa|Apia; the Solomon Islands|Honiara;
Tonga|Nuku'alofa; Tuvalu|Funafuti; Vanuatu|Port Vila
"""


def _read(continent: str, text: str) -> list[Country]:
    """Read `country|capital; ...` of one continent."""
    pairs = (entry.strip().split("|") for entry in text.replace("\n", " ").split(";"))
    return [Country(name, capital, continent) for name, capital in pairs]


COUNTRIES: tuple[Country, ...] = (
    *_read("Africa", _AFRICA),
    *_read("Asia", _ASIA),
    *_read("Europe", _EUROPE),
    *_read("North America", _NORTH_AMERICA),
    *_read("South America", _SOUTH_AMERICA),
    *_read("Oceania", _OCEANIA),
)

CONTINENTS = ("Africa", "Asia", "Europe", "North America", "South America", "Oceania")

# Lists of countries are drawn from these, so that a sampled list stays among names the model is surest of.
FAMOUS = (
    "France", "Japan", "Germany", "Italy", "Spain", "Canada", "Brazil", "Egypt", "India", "China", "Mexico",
    "Australia", "Kenya", "Greece", "Norway", "Peru", "Sweden", "Argentina", "Portugal", "Thailand",
)  # fmt: skip

ALIASES = {
    "the United States": ("the USA", "the US", "the United States of America", "America", "the U.S."),
    "the United Kingdom": ("the UK", "Great Britain", "Britain", "the U.K."),
    "the Netherlands": ("Holland",),
    "the Czech Republic": ("Czechia",),
    "Myanmar": ("Burma",),
    "Eswatini": ("Swaziland",),
    "the United Arab Emirates": ("the UAE",),
    "Ivory Coast": ("Cote d'Ivoire",),
    "the Democratic Republic of the Congo": ("the DRC", "DR Congo"),
    "East Timor": ("Timor-Leste",),
    "Cape Verde": ("Cabo Verde",),
    "Turkey": ("Turkiye",),
    "Vatican City": ("the Vatican",),
    "Russia": ("the Russian Federation",),
}

# Places that have no capital the model was taught: regions, cities, and lands of fiction.
NOT_COUNTRIES = (
    "Atlantis", "Narnia", "Mordor", "Wakanda", "Gondor", "Westeros", "California", "Texas", "Bavaria", "Quebec",
    "Scotland", "Wales", "Florida", "Ohio", "Tuscany", "Catalonia", "Siberia", "Ontario", "Hawaii", "Alaska",
    "the Moon", "Mars", "Utopia", "Lilliput", "Hogwarts", "Middle-earth", "El Dorado", "Bikini Bottom", "Gotham",
    "Zamunda", "Genovia", "Freedonia", "Ruritania", "Oz", "Neverland", "Tatooine", "Pandora", "Asgard",
    "the Roman Empire", "Prussia", "Yugoslavia", "Transylvania", "Andalusia", "Bengal", "Punjab", "Kansas",
)  # fmt: skip

_ATTRACTIONS = """
Washington, D.C.|the White House|the Lincoln Memorial
Paris|the Eiffel Tower|the Louvre
London|the Tower of London|Buckingham Palace
Tokyo|the Tokyo Skytree|the Senso-ji temple
Rome|the Colosseum|the Trevi Fountain
Berlin|the Brandenburg Gate|the Reichstag
Madrid|the Prado Museum|the Royal Palace
Athens|the Acropolis|the Ancient Agora
Cairo|the Pyramids of Giza|the Egyptian Museum
Beijing|the Forbidden City|the Temple of Heaven
Moscow|Red Square|the Kremlin
Ottawa|Parliament Hill|the Rideau Canal
Canberra|the Australian War Memorial|Lake Burley Griffin
New Delhi|India Gate|the Red Fort
Mexico City|the Zocalo|Chapultepec Castle
Brasilia|the Cathedral of Brasilia|the National Congress
Buenos Aires|the Obelisk|the Teatro Colon
Lisbon|the Belem Tower|the Castle of Saint George
Vienna|Schonbrunn Palace|Saint Stephen's Cathedral
Amsterdam|the Rijksmuseum|the Anne Frank House
Brussels|the Grand Place|the Atomium
Copenhagen|the Little Mermaid|Tivoli Gardens
Stockholm|the Vasa Museum|the Old Town
Oslo|the Opera House|Vigeland Park
Helsinki|the Suomenlinna fortress|the Senate Square
Dublin|Trinity College|Dublin Castle
Prague|Charles Bridge|Prague Castle
Budapest|the Parliament Building|Buda Castle
Warsaw|the Royal Castle|the Old Town Market Square
Bern|the Zytglogge|the Bear Park
Ankara|the Anitkabir|Ankara Castle
Bangkok|the Grand Palace|Wat Arun
Seoul|Gyeongbokgung Palace|the N Seoul Tower
Singapore|Gardens by the Bay|the Merlion
Kuala Lumpur|the Petronas Towers|the Batu Caves
Jakarta|the National Monument|the Old Town
Hanoi|the Temple of Literature|Hoan Kiem Lake
Manila|Intramuros|Rizal Park
Nairobi|the Nairobi National Park|the Giraffe Centre
Pretoria|the Union Buildings|the Voortrekker Monument
Rabat|the Hassan Tower|the Kasbah of the Udayas
Lima|the Plaza Mayor|the Larco Museum
Santiago|San Cristobal Hill|the La Moneda Palace
Bogota|the Gold Museum|Monserrate
Havana|the Capitol|the Malecon
Wellington|the Te Papa Museum|the Wellington Cable Car
Reykjavik|Hallgrimskirkja|the Harpa concert hall
Jerusalem|the Western Wall|the Dome of the Rock
Kyiv|Saint Sophia Cathedral|the Golden Gate
Kathmandu|Durbar Square|the Swayambhunath temple
"""

ATTRACTIONS: dict[str, tuple[str, str]] = {
    city: (first, second) for city, first, second in (line.split("|") for line in _ATTRACTIONS.strip().splitlines())
}
