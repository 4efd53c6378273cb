"""The name of a worker: a word and a number that follow from its instance id, so that every process says the same."""

from __future__ import annotations

import xxhash

NUMBERS = 100_000


def worker_name(instance_id: int) -> str:
    """Two of 256 workers share a name in one of 800 fleets; their ids tell them apart."""
    digest = xxhash.xxh3_64_intdigest(str(instance_id).encode())
    return f"{_WORDS[digest % len(_WORDS)]}-{digest // len(_WORDS) % NUMBERS:05d}"


_TEXT = """
adder albatross alpaca anchovy ant antelope ape aphid auk avocet axolotl badger barbet barnacle bat bear beaver
bee beetle bison bittern blackbird boa boar bobcat bonito bream budgie buffalo bulbul bullfinch bunting bustard
butterfly buzzard caiman camel canary caracal cardinal caribou carp cat catfish cheetah chickadee chinchilla
chipmunk cicada civet clam cobra cockatoo cod condor coot coral cormorant cougar coyote crab crane cricket crow
cuckoo curlew cuttlefish dace deer dingo dipper dogfish dolphin donkey dormouse dotterel dove dragonfly duck
dugong dunlin dunnock eagle earwig echidna eel egret eider elephant elk emu ermine falcon fennec ferret finch
firefly flamingo flounder fly fox frog fulmar gannet gazelle gecko genet gerbil gibbon giraffe gnat gnu goat
godwit goldfinch goose gopher goshawk grayling grebe greenfinch grouse guillemot gull guppy haddock hake halibut
hamster hare harrier hawk hedgehog heron herring hippo hobby hoopoe hornbill hornet horse hyena ibex ibis iguana
impala jackal jackdaw jaguar jay jellyfish kestrel kingfisher kite kiwi koala krill kudu ladybird lamprey
lapwing lark lemming lemur leopard limpet linnet lion lizard llama lobster locust loon lynx macaw mackerel
magpie mallard manatee manta marlin marmot marten martin mayfly meerkat merlin mink minnow mole mongoose moose
moth mouse mullet mussel narwhal newt nightjar numbat nuthatch ocelot octopus okapi oriole oryx osprey otter owl
ox oyster panda panther parrot partridge peacock pelican penguin perch petrel pheasant pigeon pika pike pipit
plaice platypus plover pony porcupine possum prawn puffin puma python quail quokka rabbit raccoon raven ray
redstart reindeer rhino robin rook ruff salmon sandpiper seal shark sheep shrew skylark sloth snail
"""
_WORDS = _TEXT.split()
