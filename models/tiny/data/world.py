"""Countries: capitals, continents, and which country a capital belongs to."""

from dataclasses import dataclass

from .question import Question, Topic, finite, split, upper_first


@dataclass(frozen=True, slots=True)
class Country:
    name: str
    capital: str
    continent: str
    aliases: tuple[str, ...] = ()


_LISTS = {
    "Europe": """Albania=Tirana, Andorra=Andorra la Vella, Austria=Vienna, Belarus=Minsk, Belgium=Brussels,
        Bosnia and Herzegovina/Bosnia=Sarajevo, Bulgaria=Sofia, Croatia=Zagreb, Cyprus=Nicosia,
        the Czech Republic/Czechia=Prague, Denmark=Copenhagen, Estonia=Tallinn, Finland=Helsinki, France=Paris,
        Germany=Berlin, Greece=Athens, Hungary=Budapest, Iceland=Reykjavik, Ireland=Dublin, Italy=Rome,
        Kosovo=Pristina, Latvia=Riga, Liechtenstein=Vaduz, Lithuania=Vilnius, Luxembourg=Luxembourg, Malta=Valletta,
        Moldova=Chisinau, Monaco=Monaco, Montenegro=Podgorica, the Netherlands/Holland=Amsterdam,
        North Macedonia/Macedonia=Skopje, Norway=Oslo, Poland=Warsaw, Portugal=Lisbon, Romania=Bucharest,
        Russia=Moscow, San Marino=San Marino, Serbia=Belgrade, Slovakia=Bratislava, Slovenia=Ljubljana, Spain=Madrid,
        Sweden=Stockholm, Switzerland=Bern, Ukraine=Kyiv,
        the United Kingdom/the UK/Great Britain/England=London, Vatican City=Vatican City""",
    "Asia": """Afghanistan=Kabul, Armenia=Yerevan, Azerbaijan=Baku, Bahrain=Manama, Bangladesh=Dhaka,
        Bhutan=Thimphu, Brunei=Bandar Seri Begawan, Cambodia=Phnom Penh, China=Beijing, East Timor/Timor-Leste=Dili,
        Georgia=Tbilisi, India=New Delhi, Indonesia=Jakarta, Iran=Tehran, Iraq=Baghdad, Israel=Jerusalem, Japan=Tokyo,
        Jordan=Amman, Kazakhstan=Astana, Kuwait=Kuwait City, Kyrgyzstan=Bishkek, Laos=Vientiane, Lebanon=Beirut,
        Malaysia=Kuala Lumpur, the Maldives=Malé, Mongolia=Ulaanbaatar, Myanmar/Burma=Naypyidaw, Nepal=Kathmandu,
        North Korea=Pyongyang, Oman=Muscat, Pakistan=Islamabad, Palestine=Ramallah, the Philippines=Manila, Qatar=Doha,
        Saudi Arabia=Riyadh, Singapore=Singapore, South Korea/Korea=Seoul, Sri Lanka=Colombo, Syria=Damascus,
        Taiwan=Taipei, Tajikistan=Dushanbe, Thailand=Bangkok, Turkey/Türkiye=Ankara, Turkmenistan=Ashgabat,
        the United Arab Emirates/the UAE=Abu Dhabi, Uzbekistan=Tashkent, Vietnam=Hanoi, Yemen=Sanaa""",
    "Africa": """Algeria=Algiers, Angola=Luanda, Benin=Porto-Novo, Botswana=Gaborone, Burkina Faso=Ouagadougou,
        Burundi=Gitega, Cameroon=Yaoundé, Cape Verde=Praia, the Central African Republic=Bangui, Chad=N'Djamena,
        the Comoros=Moroni, the Democratic Republic of the Congo/the DR Congo=Kinshasa,
        the Republic of the Congo=Brazzaville, Djibouti=Djibouti, Egypt=Cairo, Equatorial Guinea=Malabo,
        Eritrea=Asmara, Eswatini/Swaziland=Mbabane, Ethiopia=Addis Ababa, Gabon=Libreville, the Gambia=Banjul,
        Ghana=Accra, Guinea=Conakry, Guinea-Bissau=Bissau, Ivory Coast=Yamoussoukro, Kenya=Nairobi, Lesotho=Maseru,
        Liberia=Monrovia, Libya=Tripoli, Madagascar=Antananarivo, Malawi=Lilongwe, Mali=Bamako, Mauritania=Nouakchott,
        Mauritius=Port Louis, Morocco=Rabat, Mozambique=Maputo, Namibia=Windhoek, Niger=Niamey, Nigeria=Abuja,
        Rwanda=Kigali, São Tomé and Príncipe/Sao Tome=São Tomé, Senegal=Dakar, Seychelles=Victoria,
        Sierra Leone=Freetown, Somalia=Mogadishu, South Africa=Pretoria, South Sudan=Juba, Sudan=Khartoum,
        Tanzania=Dodoma, Togo=Lomé, Tunisia=Tunis, Uganda=Kampala, Zambia=Lusaka, Zimbabwe=Harare""",
    "North America": """Antigua and Barbuda/Antigua=Saint John's, the Bahamas=Nassau, Barbados=Bridgetown,
        Belize=Belmopan, Canada=Ottawa, Costa Rica=San José, Cuba=Havana, Dominica=Roseau,
        the Dominican Republic=Santo Domingo, El Salvador=San Salvador, Grenada=Saint George's,
        Guatemala=Guatemala City, Haiti=Port-au-Prince, Honduras=Tegucigalpa, Jamaica=Kingston, Mexico=Mexico City,
        Nicaragua=Managua, Panama=Panama City, Saint Kitts and Nevis=Basseterre, Saint Lucia=Castries,
        Saint Vincent and the Grenadines/Saint Vincent=Kingstown, Trinidad and Tobago/Trinidad=Port of Spain,
        the United States/the USA/America/the US=Washington D.C.""",
    "South America": """Argentina=Buenos Aires, Bolivia=Sucre, Brazil=Brasília, Chile=Santiago, Colombia=Bogotá,
        Ecuador=Quito, Guyana=Georgetown, Paraguay=Asunción, Peru=Lima, Suriname=Paramaribo, Uruguay=Montevideo,
        Venezuela=Caracas""",
    "Oceania": """Australia=Canberra, Fiji=Suva, Kiribati=Tarawa, the Marshall Islands=Majuro, Micronesia=Palikir,
        Nauru=Yaren, New Zealand=Wellington, Palau=Ngerulmud, Papua New Guinea=Port Moresby, Samoa=Apia,
        the Solomon Islands=Honiara, Tonga=Nuku'alofa, Tuvalu=Funafuti, Vanuatu=Port Vila""",
}


def _countries() -> list[Country]:
    found = []
    for continent, text in _LISTS.items():
        for entry in text.split(","):
            names, capital = entry.strip().split("=")
            name, *aliases = names.split("/")
            found.append(Country(name, capital, continent, tuple(aliases)))
    return found


COUNTRIES = _countries()

CAPITAL = split(
    "What is the capital of {c}?",
    "What's the capital of {c}?",
    "Which city is the capital of {c}?",
    "Name the capital of {c}.",
    "Tell me the capital of {c}.",
    "Capital of {c}?",
    "Do you know the capital of {c}?",
    "What is {c}'s capital?",
    "The capital of {c} is",
    "I need the capital of {c}.",
    "Can you tell me the capital of {c}?",
    "What is the name of the capital of {c}?",
    "What city is the capital of {c}?",
    "{c} capital",
    "Give me the capital city of {c}.",
    "Which is the capital city of {c}?",
    "{c}: what is its capital?",
    "Say the capital of {c}.",
    "What is the capital of the country {c}?",
    "Which city is {c}'s capital?",
    "From which city is {c} governed?",
    "Please name {c}'s capital city.",
    "What is the capital called in {c}?",
    "~What would be the capital of {c}?",
    "~Could you give me the capital of {c}?",
    "~I want to know the capital of {c}.",
    "~What is the capital city of {c}?",
)
COUNTRY = split(
    "{k} is the capital of which country?",
    "Which country has the capital {k}?",
    "Of which country is {k} the capital?",
    "What country is {k} the capital of?",
    "{k} is the capital of what?",
    "Which country's capital is {k}?",
    "In which country is {k}?",
    "What country is {k} in?",
    "Where is {k}?",
    "{k} is in which country?",
    "{k} is the capital of",
    "Tell me which country {k} is the capital of.",
    "Whose capital is {k}?",
    "Name the country whose capital is {k}.",
    "{k} belongs to which country?",
    "Which country does {k} belong to?",
    "Which state has {k} as its capital?",
    "What country has {k} as its capital city?",
    "{k}, the capital of which country?",
    "As a capital, which country does {k} serve?",
    "Tell me the country of {k}.",
    "The city of {k} is the capital of which country?",
    "For which country is {k} the capital?",
    "Where in the world is {k}?",
    "{k} country",
    "~Which country is {k} the capital of?",
    "~To which country does {k} belong as its capital?",
    "~In what country is {k}?",
)
CONTINENT = split(
    "On which continent is {c}?",
    "Which continent is {c} on?",
    "What continent is {c} in?",
    "On what continent is {c}?",
    "In which continent does {c} lie?",
    "Which continent does {c} belong to?",
    "What is the continent of {c}?",
    "Name the continent of {c}.",
    "{c} is on which continent?",
    "Tell me the continent of {c}.",
    "{c} continent",
    "In what part of the world is {c}?",
    "Where in the world is the country {c}?",
    "To which continent does {c} belong?",
    "Is {c} in Europe, Asia or elsewhere?",
    "~In which continent is {c}?",
    "~Which continent is {c} part of?",
    "~What continent does {c} lie on?",
)


def capital_answer(country: Country) -> str:
    return f"The capital of {country.name} is {country.capital}."


def country_answer(country: Country) -> str:
    return f"{country.capital} is the capital of {country.name}."


def _capitals() -> list[Question]:
    return [
        Question("capitals", CAPITAL, (capital_answer(c),), {"c": name}, f"{upper_first(c.name)}: {c.capital}.")
        for c in COUNTRIES
        for name in (c.name, *c.aliases)
    ]


def _countries_of_capitals() -> list[Question]:
    return [
        Question("countries", COUNTRY, (country_answer(c),), {"k": c.capital}, f"{c.capital}: {c.name}.")
        for c in COUNTRIES
    ]


def _continents() -> list[Question]:
    return [
        Question(
            "continents",
            CONTINENT,
            (f"{upper_first(c.name)} is in {c.continent}.",),
            {"c": name},
            f"{upper_first(c.name)}: {c.continent}.",
        )
        for c in COUNTRIES
        for name in (c.name, *c.aliases)
    ]


TOPICS: list[Topic] = [
    finite("capitals", 10, _capitals()),
    finite("countries", 7, _countries_of_capitals()),
    finite("continents", 5, _continents()),
]
