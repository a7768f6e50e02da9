"""The demo model's training text: a seeded generator, pure Python, no data files.

Three kinds of document:
  story   a short story in plain English, from a template grammar
  sum     17+25=42, two numbers under 100
  recall  Ages: Ada 42, Tom 17, Mia 88. Tom? 17

`python corpus.py [seed] [n]` prints n documents of each kind.
"""

import hashlib
import random
import sys

GIRLS = "Ada Mia Lily Anna Ella Rosa Nina Emma Zoe Lucy Ruby Ivy Clara Maya Eva Nora".split()
BOYS = "Tom Ben Sam Max Leo Tim Jack Finn Hugo Noah Oscar Otto Theo Paul Adam Luca".split()
NAMES = GIRLS + BOYS

# ---------------------------------------------------------------- sums

HELD_OUT_PAIRS = 510


def held_out_pairs():
    """Unordered pairs {a, b} that never occur in training, in either order."""
    pairs = [(a, b) for a in range(100) for b in range(a, 100)]
    return set(random.Random(1702).sample(pairs, HELD_OUT_PAIRS))


def all_sums():
    """(training, held-out), each a list of ordered (a, b)."""
    held = held_out_pairs()
    train, test = [], []
    for a in range(100):
        for b in range(100):
            (test if (min(a, b), max(a, b)) in held else train).append((a, b))
    random.Random(1703).shuffle(test)
    return train, test


# ---------------------------------------------------------------- recall


def recall_prefix(pairs):
    return "Ages: " + ", ".join(f"{name} {age}" for name, age in pairs) + "."


def recall_is_held_out(pairs):
    """Whether a list belongs to the test set, by its hash: one in 32 does."""
    return hashlib.blake2b(recall_prefix(pairs).encode(), digest_size=1).digest()[0] < 8


def recall_list(rng, held_out=False, n=None):
    while True:
        k = n or rng.choice((2, 3, 3, 4, 4, 5, 5, 6, 6))
        pairs = [(name, rng.randrange(100)) for name in rng.sample(NAMES, k)]
        if recall_is_held_out(pairs) == held_out:
            return pairs


def recall_test(count, seed=1704):
    """Held-out recalls as (prompt, answer)."""
    rng = random.Random(seed)
    out = []
    for _ in range(count):
        pairs = recall_list(rng, held_out=True)
        name, age = rng.choice(pairs)
        out.append((f"{recall_prefix(pairs)} {name}?", f" {age}"))
    return out


# ---------------------------------------------------------------- stories


class Who:
    """A character with the pronouns that go with the name."""

    def __init__(self, name, girl, kind=None):
        self.name, self.girl, self.kind = name, girl, kind
        self.he, self.him, self.his = ("she", "her", "her") if girl else ("he", "him", "his")
        self.He, self.His = self.he.capitalize(), self.his.capitalize()
        self.child = "girl" if girl else "boy"

    def __str__(self):
        return self.name


ANIMALS = "fox rabbit bear mouse cat dog duck owl squirrel turtle frog hedgehog".split()
GOOD = "kind brave happy clever gentle curious cheerful little young quiet".split()
TOYS = "red ball|blue kite|toy boat|wooden train|soft teddy bear|green hat|yellow scarf|silver whistle|small drum|picture book|paint box|toy car".split("|")
PETS = "kitten|puppy|little bird|baby duck|small rabbit|lamb".split("|")
KIN = ["mother", "father", "grandma", "grandpa", "aunt", "uncle"]
WEATHER = "sunny warm cold windy bright cloudy quiet rainy".split()
WHEN = "morning afternoon day evening".split()
OUTSIDE = ["in the park", "by the river", "in the garden", "near the old mill", "at the beach",
           "in the forest", "on the hill", "beside the lake", "in the meadow", "behind the barn"]
INSIDE = ["under the bed", "behind the door", "in the kitchen", "on the top shelf", "in the big box",
          "under the table", "behind the chair", "in the basket"]
FOOD = ["apple pie", "chocolate cake", "warm bread", "carrot soup", "berry jam", "honey cookies", "pancakes"]
NEED = {"apple pie": "apples", "chocolate cake": "eggs", "warm bread": "flour", "carrot soup": "carrots",
        "berry jam": "sugar", "honey cookies": "honey", "pancakes": "milk"}
HELPERS = ["the baker", "the farmer", "the old gardener", "the teacher", "the postman", "the fisherman"]
LESSONS = ["What a day it was!", "{p} went to bed tired and happy.", "Sometimes small things make the biggest difference.",
           "{p} knew that being kind was the best thing of all.",
           "That night, {p} slept well and dreamed of the next day.",
           "{p} smiled all the way home.",
           "It was the best day of the year.",
           "And {p} never forgot that day.",
           "{p} told the story to everyone at dinner.",
           "{p} could hardly wait for the next day."]
FRIENDLY = ["{p} learned that a good friend is better than any treasure.", "They laughed and went home together.",
            "After that, they were the best of friends."]


class Teller:
    """One story: the characters are fixed first, then a plot fills the sentences."""

    def __init__(self, rng):
        self.rng = rng
        first, second = rng.sample(NAMES, 2)
        animal = rng.random() < 0.25
        kinds = rng.sample(ANIMALS, 2) if animal else (None, None)
        self.p = Who(first, first in GIRLS, kinds[0])
        self.f = Who(second, second in GIRLS, kinds[1])

    def pick(self, *options):
        return self.rng.choice(options)

    def maybe(self, chance, *options):
        return [self.rng.choice(options)] if self.rng.random() < chance else []

    def intro(self, likes):
        """Opens the story and introduces `p`."""
        p, pick = self.p, self.pick
        what = p.kind or p.child
        adj = pick(*GOOD)
        a = "an" if what == "owl" else "a"
        home = pick("in a small house", "near the forest", "in a little village", "by the sea", "on a farm",
                    "at the edge of town", "at the foot of a hill")
        return [pick(
            f"Once upon a time, there was a {adj} {what} named {p}. {p.He} loved {likes}.",
            f"Once upon a time, a {adj} {what} named {p} lived {home}. {p.He} loved {likes}.",
            f"Once upon a time, {home}, there lived {a} {what} named {p}.",
            f"There was once a {adj} {what} named {p} who loved {likes}.",
            f"{p} was a {adj} {what} who lived {home}.",
            f"{p} was a {adj} {what}. Every day, {p.he} enjoyed {likes}.",
            f"In a small village, there lived a {adj} {what} named {p}.",
            f"Long ago, {home}, there lived a {adj} {what} named {p}. {p.He} loved {likes}.",
            f"This is the story of {p}, a {adj} {what} who loved {likes}.",
            f"Everybody knew {p}, the {adj} {what} who lived {home}.",
        )]

    def one_day(self):
        p, pick = self.p, self.pick
        return pick("One day,", "One day,", f"One {pick(*WEATHER)} {pick(*WHEN)},", "One morning,", "Early one morning,",
                    "Last summer,")

    def start(self, likes, event):
        """Either an introduction and then the event, or straight into it."""
        pick, p = self.pick, self.p
        r = self.rng.random()
        if r < 0.6:
            return self.intro(likes) + [f"{self.one_day()} {event}"]
        if r < 0.85:
            return [f"{self.one_day()} {event}"]
        return [f"It was a {pick(*WEATHER)} {pick(*WHEN)}. {event}"]

    def friend(self):
        """How the second character is named the first time."""
        f, p = self.f, self.p
        if f.kind:
            a = "an" if f.kind == "owl" else "a"
            return self.pick(f"{f} the {f.kind}", f"{a} {f.kind} named {f}")
        if p.kind is None and self.rng.random() < 0.3:
            return self.pick(f"{p.his} best friend {f}", f"{p.his} cousin {f}", f"{p.his} neighbor {f}")
        return self.pick(f"{p.his} friend {f}", f"{p.his} {'sister' if f.girl else 'brother'} {f}",
                         f"a {f.child} named {f}")

    def end(self, s, *own):
        """The sentences and a last one, which mentions friends only if the story has a friend."""
        friendly = FRIENDLY if any(self.f.name in x for x in s) else []
        return s + [self.rng.choice(list(own) * 2 + [x.format(p=self.p) for x in LESSONS + friendly])]

    # ------------------------------------------------------------ plots

    def lost(self):
        p, f, pick = self.p, self.f, self.pick
        toy = pick(*TOYS)
        it = toy.split()[-1]
        a, b = self.rng.sample(INSIDE, 2)
        c = pick(*OUTSIDE)
        s = self.start(f"playing with {p.his} {toy}", pick(
            f"{p} could not find {p.his} {toy}.", f"{p} lost {p.his} {toy}.", f"{p} saw that {p.his} {toy} was gone."))
        s += [pick(f"{p.He} looked {a} and {b}, but it was not there.",
                   f"{p.He} looked {a}. Then {p.he} looked {b}. It was not there.",
                   f"First {p.he} looked {a}, and then {b}.")]
        s += self.maybe(0.6, f"{p} felt very sad.", f"{p} sat down and began to cry.", f"\"Where can it be?\" {p.he} asked.")
        s += [pick(f"Then {self.friend()} came to help.", f"Soon {self.friend()} heard about it and came over.")]
        s += self.maybe(0.6, f"\"Let us look together,\" said {f}.", f"\"Do not worry,\" said {f}. \"We will find it.\"")
        s += [pick(f"Together they found the {it} {c}.", f"They walked for a while, and there was the {it} {c}.",
                   f"At last, {f} saw the {it} {c}.")]
        s += [pick(f"{p} was so happy that {p.he} gave {f} a big hug.", f"\"Thank you, {f}!\" said {p}.",
                   f"{p} jumped for joy and thanked {f}.")]
        return self.end(s, f"{p} put the {it} in a safe place.")

    def rescue(self):
        p, f, pick = self.p, self.f, self.pick
        pet = pick(*PETS)
        it = pet.split()[-1]
        where, tool, did = pick(
            ("high in a tree", "a long ladder", "climbed up"), ("in a deep hole", "a strong rope", "climbed down"),
            ("on a rock in the river", "an old boat", "went across the water"),
            ("behind a tall fence", "a wooden box", "climbed over"))
        s = self.start("walking " + pick(*OUTSIDE), pick(
            f"{p} heard a soft cry.", f"{p} heard a strange sound.", f"{p} was walking home when {p.he} heard a cry."))
        s += [pick(f"A {pet} was stuck {where}.", f"It was a {pet}, stuck {where}.")]
        s += self.maybe(0.6, f"The {it} looked cold and afraid.", f"\"Poor little thing,\" said {p}.",
                        f"{p} wanted to help, but it was too hard to reach.")
        s += [pick(f"{p} ran to get {self.friend()}.", f"{p} called {self.friend()}.")]
        s += [pick(f"{f} had {tool}.", f"Together they brought {tool}.", f"{f} thought for a moment and then found {tool}.")]
        s += [pick(f"{p} {did} very slowly and picked up the {it}.",
                   f"While {f} held on tight, {p} {did} and saved the {it}.")]
        s += self.maybe(0.7, f"The {it} was safe at last.", f"They gave the {it} some warm milk.",
                        f"{p} held the {it} close until it was calm.")
        return self.end(s, f"The {it} stayed with {p} and they played every day.", f"\"You were very brave,\" said {f}.")

    def bake(self):
        p, f, pick = self.p, self.f, self.pick
        food, kin = pick(*FOOD), pick(*KIN)
        need = NEED[food]
        many = need in ("apples", "eggs", "carrots")
        who = pick(*HELPERS)
        s = self.start("cooking", pick(
            f"{p} wanted to make {food} for {p.his} {kin}.", f"{p} and {p.his} {kin} decided to make {food}.",
            f"{p} had a plan. {p.He} would make {food} as a surprise for {p.his} {kin}."))
        s += [pick(f"But there {'were' if many else 'was'} no {need} in the kitchen.",
                   f"{p.He} looked in the kitchen, but there {'were' if many else 'was'} no {need}.")]
        s += self.maybe(0.5, "\"What can I do now?\" " + f"{p.he} thought.", f"{p} did not give up.")
        s += [pick(f"So {p} went to ask {who}.", f"{p} put on {p.his} coat and went to see {who}.")]
        s += [pick(f"\"I have some {need} for you,\" said {who}. \"Please bring me a little when you are done.\"",
                   f"{who.capitalize()} gave {p.him} some {need} and a warm smile.")]
        s += [pick(f"{p} ran home and mixed everything in a big bowl.", f"Back home, {p} worked hard all {pick(*WHEN)}.")]
        s += [pick("Soon the whole house smelled good.", f"When it was done, the {food} tasted wonderful." if food not in ("honey cookies", "pancakes") else f"When they were done, the {food} tasted wonderful.",
                   f"{p.His} {kin} took a bite and smiled.")]
        return self.end(s, f"{p} did not forget to bring some to {who}.", f"Everyone wanted more.")

    def scared(self):
        p, f, pick = self.p, self.f, self.pick
        thing, where, trick = pick(
            ("the dark", "in bed", "look at the stars"), ("thunder", "at home", "sing a loud song"),
            ("deep water", "at the lake", "hold on to a floating log"), ("the tall slide", "in the park", "count to three"),
            ("big dogs", "on the farm", "stand still and hold out a hand"))
        s = [pick(f"{p} was a {pick(*GOOD)} {p.kind or p.child}, but {p.he} was afraid of {thing}.",
                  f"Once upon a time, there was a {p.kind or p.child} named {p} who was afraid of {thing}.",
                  f"{p} was afraid of {thing}.")]
        s += [pick(f"One {pick(*WHEN)} {where}, {p} began to shake.", f"One {pick(*WHEN)}, {p} was {where} and felt very small.")]
        s += [pick(f"\"Are you all right?\" asked {self.friend()}.", f"Then {self.friend()} sat down beside {p.him}.")]
        s += self.maybe(0.7, f"\"I am afraid of {thing},\" said {p}.", f"{p} told {f} all about it.")
        s += [pick(f"\"I was afraid too,\" said {f}. \"When I am afraid, I {trick}.\"",
                   f"\"I know what to do,\" said {f}. \"Just {trick}.\"")]
        s += [pick(f"{p} took a deep breath and tried it.", f"So they did it together.", f"{p} tried it, first once and then again.")]
        s += [pick(f"Little by little, the fear went away.", f"It worked, and {p} began to smile.", f"{p} was surprised, because it really helped.")]
        return self.end(s, f"Now {p} was not afraid of {thing} any more.", f"{p} felt brave and proud.")

    def broken(self):
        p, f, pick = self.p, self.f, self.pick
        thing, part, tool = pick(
            ("bicycle", "wheel", "hammer"), ("wagon", "wheel", "box of nails"), ("kite", "string", "roll of thread"),
            ("toy boat", "sail", "piece of cloth"), ("clock", "hand", "small key"), ("music box", "lid", "pot of glue"))
        kin = pick(*KIN)
        s = self.start(f"playing with {p.his} {thing}", pick(f"{p} was playing when the {part} of {p.his} {thing} broke.",
                                                                      f"{p} fell, and the {part} of {p.his} {thing} broke."))
        s += self.maybe(0.6, f"{p} was very sad.", f"\"Oh no!\" said {p}.", f"{p} did not know what to do.")
        s += [pick(f"{p.He} tried to fix it alone, but it was too hard.", f"{p.He} tried again and again, but it did not work.")]
        s += [pick(f"So {p.he} took the {thing} to {p.his} {kin}.", f"Then {p.his} {kin} came to see what was wrong.")]
        s += [pick(f"{p.His} {kin} had a {tool}.", f"\"We need a {tool},\" said {p.his} {kin}.")]
        s += [pick(f"They worked together until the {part} was as good as new.",
                   f"They worked side by side, and soon the {thing} was fixed.")]
        s += self.maybe(0.6, f"{p} learned how to use the {tool}.", f"\"Now you can do it too,\" said {p.his} {kin}.")
        return self.end(s, f"{p} played with the {thing} until it was dark.", f"\"Thank you!\" said {p}.")

    def picnic(self):
        p, f, pick = self.p, self.f, self.pick
        where, food = pick(*OUTSIDE), pick(*FOOD)
        bad, safe = pick(("it began to rain", "under a big tree"), ("a strong wind came", "inside the barn"),
                         ("dark clouds filled the sky", "in a small cave"), ("it began to snow", "in the warm kitchen"))
        s = self.start("long walks", pick(f"{p} and {self.friend()} went for a picnic {where}.",
                                          f"{p} asked {self.friend()} to come to a picnic {where}."))
        s += [pick(f"They brought {food} and a big blanket.", f"{p} carried the {food}, and {f} carried the blanket.")]
        s += [pick(f"But just as they sat down, {bad}.", f"Then, all of a sudden, {bad}.")]
        s += self.maybe(0.6, f"\"Our day is ruined,\" said {p}.", f"{p} wanted to go home.", f"\"Quick, run!\" said {f}.")
        s += [pick(f"They ran as fast as they could and hid {safe}.", f"{f} took {p} by the hand, and they ran to hide {safe}.")]
        s += [pick(f"There they ate the {food} and told funny stories.", f"It was dry there, so they shared the {food} and sang songs.")]
        s += self.maybe(0.6, "Soon the sun came out again.", "Then they saw a rainbow in the sky.", "After an hour, the sky was blue again.")
        return self.end(s, f"\"This was the best picnic ever,\" said {f}.")

    def share(self):
        p, f, pick = self.p, self.f, self.pick
        fruit = pick("apple", "pear", "orange", "big cookie", "peach", "sweet melon")
        a = "an" if fruit[0] in "ao" else "a"
        s = self.start("eating fruit" if "cookie" not in fruit else "eating cookies", pick(
            f"{p} had {a} {fruit} for lunch.", f"{p} found {a} {fruit} in {p.his} bag."))
        s += [pick(f"{p.He} was about to eat it when {p.he} saw {self.friend()}.",
                   f"Just then, {self.friend()} came by and sat down.")]
        s += [pick(f"{f} had nothing to eat.", f"{f} looked hungry and sad.", f"\"I forgot my lunch,\" said {f}.")]
        s += self.maybe(0.6, f"{p} was hungry too, but {p.he} thought about {p.his} friend.", f"{p} thought for a moment.")
        s += [pick(f"\"Let us share,\" said {p}, and cut the {fruit} in two.", f"{p} cut the {fruit} in two and gave {f} the bigger part.")]
        s += [pick(f"They ate together and felt happy.", f"\"Thank you, you are a good friend,\" said {f}.")]
        s += [pick(f"The next day, {f} brought {pick(*FOOD)} and shared it with {p}.",
                   f"The next day, {f} came back with a gift for {p}.")]
        return self.end(s, f"{p} learned that sharing makes everything taste better.")

    def learn(self):
        p, f, pick = self.p, self.f, self.pick
        skill, fail, done = pick(
            ("swim", "went under the water", "swam across the lake"), ("ride a bicycle", "fell down", "rode all the way to school"),
            ("play the drum", "lost the beat", "played for the whole village"), ("skate", "fell on the ice", "skated like the wind"),
            ("whistle", "made no sound at all", "whistled a happy song"), ("fly a kite", "got the string stuck in a tree", "made the kite dance in the sky"),
            ("read", "did not know the words", "read a whole book"))
        s = self.start("trying new things", pick(f"{p} wanted to learn to {skill}.", f"{p} saw {self.friend()} and wanted to learn to {skill} too."))
        s += [pick(f"The first time, {p.he} {fail}.", f"{p.He} tried, but {p.he} {fail}.")]
        s += self.maybe(0.6, f"\"I will never do it,\" said {p}.", f"{p} wanted to give up.", f"Some children laughed, and {p} felt bad.")
        kin = pick(*KIN)
        s += [pick(f"\"Try again,\" said {p.his} {kin}. \"Everyone starts small.\"", f"But {p.his} {kin} told {p.him} to keep trying.")]
        s += [pick(f"So {p} tried every day after school.", f"Every {pick(*WHEN)}, {p} tried a little more.", f"Day after day, {p} got a little better.")]
        s += [pick(f"At last, {p} {done}.", f"Then one day, {p} {done}.")]
        s += self.maybe(0.6, f"Everyone clapped.", f"{p.His} {kin} was very proud.")
        return self.end(s, f"{p} was proud, because {p.he} did not give up.")

    def garden(self):
        p, f, pick = self.p, self.f, self.pick
        plant = pick("sunflower", "pumpkin", "apple tree", "rose", "bean plant")
        a = "an" if plant[0] == "a" else "a"
        giver = pick(*HELPERS)
        s = self.start("working in the garden", pick(f"{giver} gave {p} a tiny seed.", f"{p} got a tiny seed from {giver}."))
        s += [pick(f"{p} planted it {pick('behind the house', 'by the wall', 'in a big pot')}.", f"{p} made a small hole and put the seed inside.")]
        s += [pick(f"{p.He} gave it water every {pick('day', 'morning', 'evening')}.", f"Each day {p.he} gave it water and sang to it.")]
        s += [pick("For a long time, nothing happened.", "A week went by, and nothing happened.")]
        s += self.maybe(0.7, f"\"Maybe it is asleep,\" said {p}.", f"\"You must wait,\" said {giver}.", f"{p} was sad, but {p.he} waited.")
        s += [pick("Then one morning, a small green leaf came up.", "Then, after the rain, something green came out of the ground.")]
        s += [pick(f"It grew and grew until it was {a} {plant}.", f"By the end of summer, it was a beautiful {plant}.")]
        return self.end(s, f"{p} gave some new seeds to {f}, so that {f.he} could grow one too.", "Good things take time.")

    def found(self):
        p, f, pick = self.p, self.f, self.pick
        thing = pick("gold ring", "silver key", "small purse", "old map", "shiny coin", "blue bag")
        owner = pick(*HELPERS)
        a = "an" if thing[0] == "o" else "a"
        it = thing.split()[-1]
        s = self.start("walking " + pick(*OUTSIDE), pick(f"{p} found {a} {thing} {pick(*OUTSIDE)}.", f"{p} saw something in the grass. It was {a} {thing}."))
        s += [pick(f"{p} wanted to keep it.", f"\"How pretty!\" said {p}.", f"\"Whose {it} is this?\" {p} asked.")]
        s += [pick(f"But {self.friend()} said, \"Somebody must be looking for it.\"", f"Then {p} thought that somebody must be missing it.")]
        s += [pick(f"So {p} asked at every door in the street.", f"So {p} walked through the village and asked everyone.")]
        s += [pick(f"At last, {p.he} came to {owner}. \"That is my {it}!\" {owner} said.", f"The {it} belonged to {owner}, who had looked for it all day.")]
        gift = pick(*FOOD)
        s += [pick(f"{owner.capitalize()} was so glad that {p} got some {gift}.", f"{owner.capitalize()} thanked {p} again and again.")]
        return self.end(s, f"{p} was glad to have done the right thing.")

    def race(self):
        p, f, pick = self.p, self.f, self.pick
        prize = pick("a gold cup", "a big cake", "a new kite", "a basket of fruit")
        kind = pick("a running race", "a boat race", "a swimming race")
        s = self.start("being outside", pick(f"{p} and {self.friend()} were in {kind}.", f"{p} joined {kind}, and so did {self.friend()}."))
        s += [f"The prize was {prize}."]
        s += [pick(f"{p} was fast, and soon {p.he} was in front.", f"At first, {p} was in front of everyone.")]
        s += [pick(f"Then {p} heard a shout. {f} had fallen and could not get up.", f"But then {p.he} looked back and saw that {f} was hurt.")]
        s += self.maybe(0.6, f"{p} looked at the finish line, and then at {f}.", f"{p} stopped at once.")
        s += [pick(f"{p} turned around and went back to help.", f"{p} ran back and helped {f} up.")]
        s += [pick(f"They crossed the line together, last of all.", f"Somebody else won the race.")]
        s += [pick(f"But everyone clapped for {p} the most.", f"\"You lost because of me,\" said {f}. \"I won a friend,\" said {p}.")]
        return self.end(s, f"In the end, the winner shared {prize} with them.")

    def shy(self):
        p, f, pick = self.p, self.f, self.pick
        game = pick("hide and seek", "football", "a card game", "with a kite", "with wooden blocks")
        s = self.start("making new friends", f"{p} saw that a new family had moved in next door.")
        s += [pick(f"There was a {f.kind or f.child} named {f}, who was very shy.", f"They had a {f.kind or f.child} named {f}.")]
        s += [pick(f"{f} sat alone and did not say a word.", f"{f} stood by the window and only looked.")]
        s += self.maybe(0.6, f"{p} wanted to say hello.", f"\"Maybe {f.he} does not like us,\" thought {p}.")
        s += [pick(f"The next day, {p} brought some {pick(*FOOD)}.", f"{p} walked over with a smile. \"Hello, I am {p},\" {p.he} said.")]
        s += [pick(f"\"Do you want to play {game}?\" asked {p}.", f"{p} asked {f} to play {game}.")]
        s += [pick(f"{f} smiled for the first time.", f"\"Yes, please,\" {f} said in a small voice.")]
        s += self.maybe(0.7, f"They played until the sun went down.", "Soon they were laughing together.")
        return self.end(s, f"{f} was not shy any more.", f"Now {f} had a friend.")

    def star(self):
        p, f, pick = self.p, self.f, self.pick
        wish = pick("a little dog", "a friend to play with", "snow in winter", "a visit from grandma", "a boat with a white sail")
        s = self.start("looking at the stars", pick(f"{p} looked at the night sky and made a wish.", f"{p} saw a bright star fall from the sky."))
        s += [pick(f"\"I wish for {wish},\" {p.he} said.", f"{p} closed {p.his} eyes and wished for {wish}.")]
        s += [pick(f"{p.He} waited one day, two days, three days.", f"The next day nothing happened, and {p} felt sad.")]
        s += self.maybe(0.6, f"\"Wishes take time,\" said {self.friend()}.", f"\"Do not give up,\" said {self.friend()}.")
        s += [pick("Then there was a knock at the door.", "Then, early in the morning, there was a soft sound outside.")]
        s += [{"a little dog": "It was a little dog with no home.", "a friend to play with": "Outside stood a child with a ball.",
               "snow in winter": "The whole garden was white with snow.", "a visit from grandma": "It was grandma with a big basket.",
               "a boat with a white sail": "A boat with a white sail was on the river."}[wish]]
        s += [pick(f"{p} could not believe it and laughed out loud.", f"\"My wish came true!\" said {p}.")]
        return self.end(s, f"That night, {p} thanked the star.")

    def bridge(self):
        p, f, pick = self.p, self.f, self.pick
        goal = pick("the berry field", "the old tower", f"{f}'s house", "the market", "the green hill")
        s = self.start("long walks", pick(f"{p} wanted to go to {goal}, but a river was in the way.",
                                          f"{p} was on the way to {goal}, but the bridge was gone."))
        s += [pick("The water was fast and cold.", "The river was too deep to cross.")]
        s += self.maybe(0.5, f"\"I can not swim,\" said {p}.", f"{p} sat down to think.")
        fr = f"{f} the {f.kind}" if f.kind else f"{p.his} friend {f}"
        s += [pick(f"Then {p.he} saw {fr} on the other side.", f"Then {fr} came along the path.")]
        s += [pick(f"\"Let us build a bridge,\" said {f}.", f"\"We could use that old log,\" said {f}.")]
        s += [pick("They pushed and pulled until a log lay across the water.", "They worked all day with logs and rope.")]
        s += [pick(f"Step by step, {p} went across.", f"{p} walked over it with great care.")]
        s += self.maybe(0.6, "The bridge was strong and held them both.", f"\"We did it!\" said {f}.")
        return self.end(s, "From then on, everyone used the new bridge.", f"They went to {goal} together." if "house" not in goal else f"They went home together.")

    def gift(self):
        p, f, pick = self.p, self.f, self.pick
        made = pick("a card with a big red heart", "a small wooden horse", "a song", "a warm scarf", "a crown of flowers", "a paper lamp")
        s = self.start("making things", f"{p} was going to the birthday of {self.friend()}, but {p.he} had no gift.")
        s += [pick(f"{p.He} had no money to buy one.", f"{p} looked in {p.his} pocket, but there was no money.")]
        s += [pick(f"{p} thought for a long time.", f"\"What can I give?\" {p.he} asked {p.his} {pick(*KIN)}.")]
        s += [pick(f"Then {p.he} had an idea and made {made}.", f"So {p} worked all {pick(*WHEN)} and made {made}.")]
        s += [pick(f"The other gifts were big and shiny, and {p} felt shy.", f"At the party, {p} was afraid that {f} would not like it.")]
        s += [pick(f"But {f} loved it the most.", f"But when {f} saw it, {f.his} eyes were full of joy.")]
        s += self.maybe(0.7, f"\"You made this for me?\" {f} asked.", f"\"It is the best gift of all,\" said {f}.")
        return self.end(s, f"{p} learned that a gift from the heart is worth more than gold.")

    def winter(self):
        p, f, pick = self.p, self.f, self.pick
        pet = pick("little bird", "small rabbit", "baby owl", "gray mouse")
        it = pet.split()[-1]
        s = [pick(f"It was a cold winter {pick(*WHEN)}.", f"One cold winter {pick(*WHEN)}, snow fell on the village.", "Snow fell all night long.")]
        s += [pick(f"{p} found a {pet} in the snow.", f"On the way home, {p} saw a {pet} under a bush.")]
        s += [pick(f"The {it} was cold and could not move.", f"The {it} had a hurt leg.")]
        s += [pick(f"{p} put it inside {p.his} coat and took it home.", f"Very gently, {p} carried it home.")]
        s += [pick(f"{p.He} made a warm bed in a box by the fire.", f"{p} and {self.friend()} made a soft bed of hay.")]
        s += [pick(f"Every day, {p} gave it food and water.", f"All winter long, {p} took good care of it.")]
        s += [pick(f"In spring, the {it} was strong again.", f"When the snow was gone, the {it} was well again.")]
        s += [pick(f"{p} opened the door and let it go.", f"{p} was a little sad to let it go, but {p.he} knew it was right.")]
        return self.end(s, f"Sometimes the {it} came back to say hello.")

    def treasure(self):
        p, f, pick = self.p, self.f, self.pick
        where = pick("an old tree", "a flat stone", "the old mill", "a small cave")
        inside = pick("old books", "funny hats", "letters from long ago", "shells from the sea", "gold coins")
        s = self.start("looking for treasure", pick(f"{p} found an old map {pick(*INSIDE)}.", f"{p} and {self.friend()} found an old map."))
        s += [pick(f"It showed a path to {where}.", f"A red line went over the hill to {where}.")]
        s += self.maybe(0.6, f"\"It must be a treasure!\" said {f}.", f"{p} called {f}, and they packed a bag.")
        s += [pick("They walked past the lake and over the hill.", "They went through the forest and along the river.")]
        s += [pick(f"When they came to {where}, they began to dig.", f"Near {where}, they found a box in the ground.")]
        s += [pick(f"Inside the box were {inside}.", f"They opened the box. It was full of {inside}.")]
        s += [pick(f"{p} and {f} looked at each other and laughed.", f"\"I have never seen so many {inside}!\" said {p}." if inside != "letters from long ago" else f"They read them all {pick(*WHEN)}.")]
        return self.end(s, f"They shared the {inside} with the whole village.", "But the walk together was the real treasure.")

    def truth(self):
        p, f, pick = self.p, self.f, self.pick
        thing = pick("vase", "blue plate", "lamp", "window", "tea cup")
        kin = pick(*KIN)
        s = self.start("running around", pick(f"{p} was playing in the house and broke the {thing}.", f"{p} threw a ball, and it broke the {thing}."))
        s += [pick(f"{p} was afraid and hid in {p.his} room.", f"{p} felt very bad.")]
        s += [pick(f"{p.His} {kin} came in and asked, \"Who did this?\"", f"When {p.his} {kin} came home, the room was quiet.")]
        s += self.maybe(0.6, f"{p} wanted to say that it was the cat.", f"{p}'s heart beat fast.")
        s += [pick(f"But {p} told the truth. \"I am sorry,\" {p.he} said.", f"\"It was me,\" said {p}. \"I am sorry.\"")]
        s += [pick(f"{p.His} {kin} gave {p.him} a hug. \"Thank you for telling the truth.\"", f"{p.His} {kin} was not angry at all.")]
        s += [pick(f"Together they cleaned the floor.", f"Then they fixed the {thing} with glue." if thing != "window" else "Then they cleaned up together.")]
        return self.end(s, f"{p} felt much better.", f"After that, {p} only played outside.")

    def lost_way(self):
        p, f, pick = self.p, self.f, self.pick
        guide = pick("an old owl", "a white rabbit", "a tiny bird", "a small light", "a gray cat")
        it = guide.split()[-1]
        s = self.start("long walks", pick(f"{p} went for a walk in the forest.", f"{p} went too far into the forest."))
        s += [pick(f"It got dark, and {p.he} did not know the way home.", f"Soon all the trees looked the same, and {p} was lost.")]
        s += self.maybe(0.6, f"\"Is anybody there?\" {p.he} called.", f"{p} sat on a stone and tried not to cry.")
        s += [pick(f"Then {guide} came out of the trees.", f"Suddenly, {p} saw {guide} between the trees.")]
        s += [pick(f"\"Follow me,\" it seemed to say.", f"{p} followed the {it} along a narrow path.")]
        s += [pick(f"They went over a little bridge and past the old mill.", f"They went down the hill and along the river.")]
        s += [pick(f"At last, {p} saw the lights of home.", f"Soon {p} could smell the fire and hear the voice of {p.his} {pick(*KIN)}.")]
        s += self.maybe(0.7, f"{p} turned to say thank you, but the {it} was gone.", f"{p} waved to the {it} and ran to the door.")
        return self.end(s, f"After that, {p} always carried a lamp.", f"{p} never went into the forest alone again.")

    def hat(self):
        p, f, pick = self.p, self.f, self.pick
        thing = pick("hat", "scarf", "umbrella", "letter")
        s = self.start("windy days", f"{p} was walking {pick(*OUTSIDE)} when the wind took {p.his} {thing}.")
        s += [pick(f"The {thing} flew over a fence, over a cow, and over the river.", f"{p} ran after it, but the {thing} flew higher and higher.")]
        s += [pick(f"\"Stop, {thing}, stop!\" {p} called.", f"\"Come back!\" {p} shouted, but the wind only laughed.")]
        s += [pick(f"The {thing} landed in a tree, next to a nest.", f"At last, it came down on the head of a goat.", f"It came down right in front of {self.friend()}.")]
        s += [pick(f"{p} laughed so hard that {p.he} had to sit down.", f"{p} could not help laughing.")]
        s += [pick(f"\"Well,\" said {p}, \"now it has a new home.\"", f"{p} took the {thing} and held on to it with both hands.")]
        return self.end(s, f"The next time, {p} left the {thing} at home.")

    def sick(self):
        p, f, pick = self.p, self.f, self.pick
        s = self.start("helping others", f"{p} heard that {self.friend()} was sick.")
        s += [pick(f"{f} had to stay in bed all week.", f"{f} could not come out to play.")]
        s += self.maybe(0.6, f"{p} felt lonely without {f.him}.", f"\"Poor {f},\" said {p}.")
        s += [pick(f"{p} made some hot soup and took it to {f}.", f"{p} picked flowers and put them in a basket.", f"{p} brought a book and read it out loud.")]
        s += [pick(f"\"You came to see me!\" said {f}.", f"{f} smiled as soon as {f.he} saw {p}.")]
        s += [pick(f"{p} came back the next day, and the day after that.", f"They talked and laughed until it was time to go.")]
        s += [pick(f"After a few days, {f} was well again.", f"Soon {f} felt strong enough to get up.")]
        return self.end(s, f"\"You are the best medicine,\" said {f}.", f"The first thing they did was run {pick(*OUTSIDE)}.")

    def fishing(self):
        p, f, pick = self.p, self.f, self.pick
        kin = pick(*KIN)
        s = self.start("fishing", pick(f"{p} went fishing with {p.his} {kin}.", f"{p} and {p.his} {kin} took the boat out on the lake."))
        s += [pick("They sat for hours, and nothing happened.", f"{p} held the rod and waited, and waited, and waited.")]
        s += self.maybe(0.6, f"\"There are no fish here,\" said {p}.", f"\"Be patient,\" said {p.his} {kin}.")
        s += [pick("Then, all at once, something pulled hard.", f"Suddenly, the rod almost jumped out of {p.his} hands.")]
        s += [pick(f"{p} pulled with all {p.his} strength.", f"\"Help me!\" {p.he} shouted.")]
        s += [pick("It was the biggest fish they had ever seen.", "But it was not a fish. It was an old boot!", "Up came a fish with silver eyes.")]
        if "boot" in s[-1]:
            s += [pick(f"{p} and {p.his} {kin} laughed until the boat shook.", f"\"We can not eat that,\" said {p.his} {kin}.")]
        else:
            s += [pick(f"{p} looked at it and then let it go.", f"\"Let us put it back,\" said {p}, and they did.")]
        return self.end(s, f"They had no fish for dinner, but they had a good story.")

    def show(self):
        p, f, pick = self.p, self.f, self.pick
        act, mishap = pick(("sing a song", "forgot the words"), ("do a magic trick", "dropped all the cards"),
                           ("dance", "lost a shoe"), ("tell a joke", "could not say a word"))
        s = self.start("music", pick(f"{p} was going to {act} in the school show.", f"there was a show at school, and {p} was going to {act}."))
        s += [pick(f"{p.He} practiced every day in front of the mirror.", f"{p.His} {pick(*KIN)} helped {p.him} to practice.")]
        s += [pick(f"But when {p} stood in front of everyone, {p.he} {mishap}.", f"On the big day, {p} {mishap}.")]
        s += self.maybe(0.6, "The room was very quiet.", f"{p.His} face turned red.")
        s += [pick(f"Then {self.friend()} stood up and began to clap.", f"\"You can do it!\" called {self.friend()}.")]
        s += [pick(f"{p} took a deep breath and started again.", f"{p} smiled and tried once more.")]
        s += [pick("This time, everything went well.", f"This time, {p.he} was wonderful.")]
        return self.end(s, "Everyone clapped and asked for more.", f"\"I could not have done it without you,\" {p} told {f}.")

    def market(self):
        p, f, pick = self.p, self.f, self.pick
        want = pick("a new book", "a blue cup", "a pair of shoes", "a bag of nuts")
        seller = pick(*HELPERS)
        s = self.start("going to the market", pick(f"{p} had three coins and wanted to buy {want}.", f"{p} went to the market to buy {want}."))
        s += [pick("The market was full of people and sounds.", "There were apples, flowers, and cheese everywhere.")]
        s += [pick(f"On the way, {p} met {self.friend()}, who was crying.", f"Then {p} saw {self.friend()}, who had lost all {f.his} money.")]
        s += self.maybe(0.6, f"\"I can not buy bread for my family,\" said {f}.", f"\"What is wrong?\" asked {p}.")
        s += [pick(f"{p} gave {f} the coins, one by one.", f"{p} looked at the coins, and then gave them to {f}.")]
        s += [pick(f"{seller.capitalize()} saw it all.", f"\"That was kind,\" said {seller}.")]
        s += [pick(f"The next morning, {want} stood in front of {p}'s door.", f"{seller.capitalize()} smiled and gave {p} {want} for nothing.")]
        return self.end(s, "Kindness comes back in the end.")

    def snowman(self):
        p, f, pick = self.p, self.f, self.pick
        nose = pick("a carrot", "a red pepper", "a wooden spoon", "a banana")
        s = [pick(f"One morning, {p} looked out of the window, and everything was white.", f"It was the first day of snow, and {p} ran outside.",
                  f"{p} woke up and saw snow on all the roofs.")]
        s += [pick(f"{p} and {self.friend()} made a big snowman.", f"{p} called {self.friend()}, and they built a snowman {pick(*OUTSIDE)}.")]
        s += [f"They gave it {pick('two stones', 'two buttons', 'two nuts')} for eyes and {nose} for a nose."]
        s += self.maybe(0.7, f"\"It looks like {pick('the teacher', 'grandpa', 'the baker')},\" said {f}, and they laughed.", f"{p} put {p.his} own scarf around its neck.")
        s += [pick("In the night, the snowman seemed to move.", f"That night, {p} dreamed that the snowman could dance.")]
        s += [pick("The next day, the sun was warm, and the snowman grew small.", "A week later, the sun came, and the snowman was gone.")]
        s += [pick(f"{p} was sad, but {f} said, \"We will make a new one next year.\"", f"\"Do not be sad,\" said {f}. \"Now it will be a river, and then a cloud, and then snow again.\"")]
        return self.end(s, f"Only {nose} was left in the grass.")

    PLOTS = (lost, rescue, bake, scared, broken, picnic, share, learn, garden, found, race, shy, star, bridge,
             gift, winter, treasure, truth, lost_way, hat, sick, fishing, show, market, snowman)


def story(rng):
    t = Teller(rng)
    text = " ".join(rng.choice(Teller.PLOTS)(t))
    # "One day, the baker ..." stays; a sentence that begins with an event gets a capital
    out, up = [], True
    for i, ch in enumerate(text):
        if up and ch.isalpha():
            ch, up = ch.upper(), False
        elif ch == '"' and i + 1 < len(text) and text[i + 1].isalpha():
            pass
        elif ch in ".!?" and text[i + 1:i + 2] == " ":
            up = True
        out.append(ch)
    return "".join(out)


if __name__ == "__main__":
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    rng = random.Random(seed)
    for _ in range(int(sys.argv[2]) if len(sys.argv) > 2 else 5):
        print(story(rng), "\n")
        a, b = rng.choice(all_sums()[0])
        print(f"{a}+{b}={a + b}\n")
        pairs = recall_list(rng)
        name, age = rng.choice(pairs)
        print(f"{recall_prefix(pairs)} {name}? {age}\n")
