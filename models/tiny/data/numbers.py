"""Sums, differences, times tables, divisions, counting and comparing."""

from random import Random

from .question import Question, Topic, split

LARGEST = 100

SUM = split(
    "What is {a} + {b}?",
    "What is {a} plus {b}?",
    "{a} + {b}",
    "{a}+{b}",
    "{a} + {b} =",
    "{a}+{b}=?",
    "Add {a} and {b}.",
    "How much is {a} plus {b}?",
    "How much is {a} + {b}?",
    "What is the sum of {a} and {b}?",
    "Calculate {a} + {b}.",
    "{a} plus {b}",
    "What do you get when you add {a} and {b}?",
    "Compute {a} + {b}.",
    "What's {a}+{b}?",
    "Sum of {a} and {b}?",
    "~Tell me {a} plus {b}.",
    "~Can you add {a} and {b}?",
    "~What does {a} + {b} make?",
)
DIFFERENCE = split(
    "What is {a} - {b}?",
    "What is {a} minus {b}?",
    "{a} - {b}",
    "{a}-{b}",
    "{a} - {b} =",
    "{a}-{b}=?",
    "Subtract {b} from {a}.",
    "How much is {a} minus {b}?",
    "How much is {a} - {b}?",
    "Calculate {a} - {b}.",
    "{a} minus {b}",
    "Take {b} away from {a}.",
    "Compute {a} - {b}.",
    "What's {a}-{b}?",
    "~Tell me {a} minus {b}.",
    "~Can you subtract {b} from {a}?",
    "~What does {a} - {b} make?",
)
PRODUCT = split(
    "What is {a} times {b}?",
    "What is {a} * {b}?",
    "What is {a} x {b}?",
    "{a} times {b}",
    "{a} * {b}",
    "{a}*{b}",
    "{a} x {b}",
    "{a}x{b}",
    "{a} × {b}",
    "Multiply {a} by {b}.",
    "Multiply {a} and {b}.",
    "How much is {a} times {b}?",
    "What is the product of {a} and {b}?",
    "Calculate {a} * {b}.",
    "What is {a} multiplied by {b}?",
    "{a} * {b} =",
    "What's {a} times {b}?",
    "~Tell me {a} times {b}.",
    "~Can you multiply {a} by {b}?",
    "~How much is {a} x {b}?",
)
QUOTIENT = split(
    "What is {a} divided by {b}?",
    "What is {a} / {b}?",
    "{a} / {b}",
    "{a}/{b}",
    "{a} divided by {b}",
    "Divide {a} by {b}.",
    "How much is {a} divided by {b}?",
    "Calculate {a} / {b}.",
    "{a} : {b}",
    "{a} ÷ {b}",
    "~Tell me {a} divided by {b}.",
    "~Can you divide {a} by {b}?",
)
UP = split(
    "Count from {a} to {b}.",
    "Count {a} to {b}",
    "Can you count from {a} to {b}?",
    "Count up from {a} to {b}.",
    "Please count from {a} up to {b}.",
    "List the numbers from {a} to {b}.",
    "Say the numbers from {a} to {b}.",
    "Numbers from {a} to {b}",
    "~Would you count from {a} to {b}?",
    "~Count all numbers from {a} to {b}.",
)
TO = split(
    "Count to {b}.",
    "Can you count to {b}?",
    "Count up to {b}.",
    "count till {b}",
    "Please count to {b}.",
    "~Would you count to {b}?",
    "~I want you to count to {b}.",
)
DOWN = split(
    "Count down from {a}.",
    "Count backwards from {a}.",
    "Count down from {a} to 0.",
    "Can you count down from {a}?",
    "Countdown from {a}",
    "Start a countdown from {a}.",
    "~Please count backwards from {a} to 0.",
    "~Do a countdown from {a}.",
)
EVEN = split(
    "Is {a} even or odd?",
    "Is {a} even?",
    "Is {a} odd?",
    "Is the number {a} even or odd?",
    "Even or odd: {a}?",
    "Is {a} an odd number?",
    "Is {a} divisible by 2?",
    "Tell me if {a} is even.",
    "{a}: even or odd?",
    "Is the number {a} odd?",
    "What is {a}, even or odd?",
    "~Is {a} an even number?",
    "~Is {a} odd or even?",
)
BIGGER = split(
    "Which is bigger, {a} or {b}?",
    "What is bigger, {a} or {b}?",
    "Which number is larger, {a} or {b}?",
    "Is {a} bigger than {b}?",
    "Is {a} larger than {b}?",
    "Is {a} or {b} bigger?",
    "Which is more, {a} or {b}?",
    "Is {a} greater than {b}?",
    "Is {a} smaller than {b}?",
    "Which number is bigger, {a} or {b}?",
    "Is {a} less than {b}?",
    "Compare {a} and {b}.",
    "Which is greater: {a} or {b}?",
    "Bigger: {a} or {b}?",
    "~Which is larger, {a} or {b}?",
    "~Is {a} more than {b}?",
)
AFTER = split(
    "What number comes after {a}?",
    "Which number comes after {a}?",
    "What comes after {a}?",
    "Which number follows {a}?",
    "What is the number after {a}?",
    "~What number follows {a}?",
)
BEFORE = split(
    "What number comes before {a}?",
    "Which number comes before {a}?",
    "What comes before {a}?",
    "What is the number before {a}?",
    "~Which number is before {a}?",
)


def _slots(a: int, b: int = 0) -> dict[str, str]:
    return {"a": str(a), "b": str(b)}


def sum_of(a: int, b: int) -> Question:
    said = f"{a} plus {b} is {a + b}."
    carry = a % 10 + b % 10
    thought = f"The ones give {carry}, the tens {a // 10 * 10 + b // 10 * 10}. {said}"
    return Question("sums", SUM, (said,), _slots(a, b), thought)


def difference_of(a: int, b: int) -> Question:
    said = f"{a} minus {b} is {a - b}."
    return Question("differences", DIFFERENCE, (said,), _slots(a, b), said)


def product_of(a: int, b: int) -> Question:
    said = f"{a} times {b} is {a * b}."
    return Question("times tables", PRODUCT, (said,), _slots(a, b), said)


def quotient_of(a: int, b: int) -> Question:
    said = f"{a} divided by {b} is {a // b}."
    return Question("divisions", QUOTIENT, (said,), _slots(a, b), f"{b} times {a // b} is {a}. {said}")


def _sum(rng: Random) -> Question:
    small = rng.random() < 0.25
    top = 20 if small else LARGEST
    return sum_of(rng.randint(0, top), rng.randint(0, top))


def _difference(rng: Random) -> Question:
    top = 20 if rng.random() < 0.25 else LARGEST
    a, b = rng.randint(0, top), rng.randint(0, top)
    if a < b and rng.random() < 0.6:
        a, b = b, a
    return difference_of(a, b)


def _counting(rng: Random) -> Question:
    shape = rng.random()
    if shape < 0.4:
        start, length = rng.randint(0, 90), rng.randint(2, 24)
        numbers, forms, slots = range(start, start + length), UP, _slots(start, start + length - 1)
    elif shape < 0.65:
        end = rng.randint(2, 30)
        numbers, forms, slots = range(1, end + 1), TO, _slots(1, end)
    else:
        start = rng.randint(2, 25)
        numbers, forms, slots = range(start, -1, -1), DOWN, _slots(start)
    said = ", ".join(map(str, numbers)) + "."
    return Question("counting", forms, (said,), slots, f"From {numbers[0]} to {numbers[-1]}.")


def _comparing(rng: Random) -> Question:
    shape = rng.random()
    a, b = rng.randint(0, LARGEST), rng.randint(0, LARGEST)
    if shape < 0.3:
        said = f"{a} is {'odd' if a % 2 else 'even'}."
        return Question("comparing", EVEN, (said,), _slots(a), f"It ends in {a % 10}.")
    if shape < 0.45:
        return Question("comparing", AFTER, (f"After {a} comes {a + 1}.",), _slots(a), f"{a} plus 1 is {a + 1}.")
    if shape < 0.6:
        return Question("comparing", BEFORE, (f"Before {a + 1} comes {a}.",), _slots(a + 1), f"{a}.")
    said = f"{a} and {b} are equal." if a == b else f"{max(a, b)} is bigger than {min(a, b)}."
    return Question("comparing", BIGGER, (said,), _slots(a, b), said)


_PRODUCTS = [product_of(a, b) for a in range(13) for b in range(13)]
_QUOTIENTS = [quotient_of(a * b, b) for a in range(13) for b in range(1, 13)]

TOPICS: list[Topic] = [
    Topic("sums", 13, _sum),
    Topic("differences", 14, _difference),
    Topic("times tables", 5, lambda rng: rng.choice(_PRODUCTS), _PRODUCTS),
    Topic("divisions", 3, lambda rng: rng.choice(_QUOTIENTS), _QUOTIENTS),
    Topic("counting", 4, _counting),
    Topic("comparing", 9, _comparing),
]
