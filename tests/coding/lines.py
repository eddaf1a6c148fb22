"""Lines in the formats of HumanEval, MBPP and APPS, with right and wrong completions of each."""

from __future__ import annotations

import json

HUMANEVAL = [
    {
        "task_id": "Mine/0",
        "prompt": 'from typing import List\n\n\ndef longest(words: List[str]) -> str:\n    """The longest word."""\n',
        "entry_point": "longest",
        "canonical_solution": "    return max(words, key=len, default='')\n",
        "test": "\n\nMETADATA = {'author': 'x'}\n\n\ndef check(candidate):\n    assert candidate(['a', 'bbb', 'cc']) == 'bbb'\n"
        "    assert candidate([]) == ''\n",
    },
    {
        "task_id": "Mine/1",
        "prompt": "import math\n\n\ndef value(xs: list, x: float):\n    return sum(c * math.pow(x, i) for i, c in enumerate(xs))\n\n\n"
        'def zero(xs: list):\n    """A zero of the line xs[0] + xs[1] * x, as value computes it."""\n',
        "entry_point": "zero",
        "canonical_solution": "    return -xs[0] / xs[1]\n",
        "test": "def check(candidate):\n    import random\n    chance = random.Random(1)\n    for _ in range(5):\n"
        "        xs = [chance.randint(-9, 9), chance.randint(1, 9)]\n        assert math.fabs(value(xs, candidate(xs[:]))) < 1e-4\n",
    },
]
MBPP = [
    {
        "task_id": 2,
        "text": "Write a function to find the common items of two tuples.",
        "code": "def help_me(x):\n  return set(x)\ndef common(a, b):\n  return tuple(help_me(a) & help_me(b))",
        "test_list": ["assert set(common((3, 4), (4, 5))) == set((4,))", "assert common((1,), (2,)) == ()"],
        "test_setup_code": "",
        "challenge_test_list": ["assert common((), ()) == ()"],
    },
    {
        "task_id": 3,
        "prompt": "Write a function that halves.",
        "code": "def half(x):\n    return x / 2",
        "test_list": ["assert half(4) == 2", "assert math.isclose(half(0.2), 0.1)"],
        "test_imports": ["import math"],
    },
    {
        "task_id": 4,
        "text": "Write a function that sums.",
        "code": "import math\ndef sum(a, b):\n    return math.fsum([a, b])",
        "test_list": ["assert math.isclose(sum(0.1, 0.2), 0.3)", "assert sum(1, 2) == 3"],
    },
]
APPS = [
    {
        "problem_id": 7,
        "question": "Print the sum of the numbers in each line.",
        "input_output": json.dumps({"inputs": ["1 2\n3\n", ["4", "5 0.5"]], "outputs": ["3\n3\n", ["4", "5.5"]]}),
        "solutions": json.dumps(
            [
                "import sys\nfor line in sys.stdin:\n    n = sum(map(float, line.split()))\n    print(int(n) if n % 1 == 0 else n)"
            ]
        ),
        "starter_code": "",
    },
    {
        "problem_id": 8,
        "question": "Swap two numbers.",
        "input_output": {"fn_name": "swap", "inputs": [[1, 2], [3, 3]], "outputs": [[[2, 1]], [3, 3]]},
        "solutions": "",
        "starter_code": "class Solution:\n    def swap(self, a: int, b: int):\n        ",
    },
]
SWAP = "class Solution:\n    def swap(self, a, b):\n        return b, a"
WRONG = {
    "Mine/0": "    return words[0]\n",
    "Mine/1": "    return 0.0\ndef value(xs, x):\n    return 0.0\n",  # the tester's own is used
    "2": "def common(a, b):\n    return a",
    "3": "def half(x):\n    return x",
    "4": "import math\nmath.isclose = lambda a, b: True\ndef sum(a, b):\n    return a",
    "7": "print(input())",
    "8": SWAP.replace("b, a", "a, b"),
}
