"""The arcade environments beside models of their rules in plain Python, and beside players who ought to win or lose.

A model starts from what an environment shows (observations, pictures), applies the rules as the header states them, and must arrive
at what it shows next. What is random (serves, pieces, new food) is taken from what is shown and checked for being allowed.
"""

from __future__ import annotations

import collections
import itertools

import numpy as np
import pytest

import fugu
from fugu.errors import ConfigError


def play(name, policy, num_envs=64, steps=4000, **settings):
    """The log of ``policy(obs, rng)`` played on many worlds."""
    with fugu.vector.make(name, num_envs, num_workers=1, env_kwargs=settings) as vec:
        obs, _ = vec.reset(seed=0)
        rng = np.random.default_rng(0)
        for _ in range(steps):
            obs = vec.step(policy(obs, rng))[0]
        return vec.drain_log()


def at_random(choices):
    return lambda obs, rng: rng.integers(0, choices, len(obs))


def go_towards(goal, own, slack):
    """1 to make ``own`` smaller, 2 to make it larger."""
    return np.where(goal < own - slack, 1, np.where(goal > own + slack, 2, 0))


def follow_in_pong(obs, rng):
    return go_towards(obs[:, 3], obs[:, 0], 0.03)


def follow_in_breakout(obs, rng):
    return go_towards(obs[:, 1], obs[:, 0], 0.02)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("breakout", {"frameskip": 0}),
        ("breakout", {"ball_speed": 6.0}),
        ("breakout", {"balls": float("nan")}),
        ("pong", {"points": 1.5}),
        ("pong", {"points": 10**12}),
        ("snake", {"food": 1600}),
        ("snake", {"max_length": 129}),
        ("tetris", {"gravity": 0}),
        ("tetris", {"max_steps": -1}),
    ],
)
def test_settings_out_of_range_are_refused(name, settings):
    (key,) = settings
    with pytest.raises(ConfigError, match=f"{name}: {key}=.* must (lie in|be a whole number)"):
        fugu.vector.make(name, 1, env_kwargs=settings)


# ---- pong


def test_a_pong_player_who_follows_the_ball_wins_and_one_who_stands_still_loses():
    followed = play("pong", follow_in_pong)
    assert followed.episodes > 50
    assert followed.mean_values["won"] == 1.0
    assert followed.mean_return == followed.mean_values["score"] > 9
    stood = play("pong", lambda obs, rng: np.zeros(len(obs), np.int64))
    assert stood.mean_values["won"] == 0.0
    assert stood.mean_return < -9


def pong_step(before, action, settings):
    """The 6 numbers (paddles, ball, velocity) and the reward after ``action``."""
    player, opponent, x, y, vx, vy = before
    speed, half = settings["max_speed"], settings["paddle_size"] / 2
    vx, vy = vx * speed, vy * speed
    player = np.clip(player + (0, -1, 1)[action] * settings["paddle_speed"], half - 1, 1 - half)
    wish = (y if vx < 0 and x < 0 else 0.0) - opponent
    opponent = np.clip(opponent + np.clip(wish, -settings["opponent_speed"], settings["opponent_speed"]), half - 1, 1 - half)
    was, x, y = x, x + vx, y + vy
    if abs(y) > 1:
        y, vy = 2 * np.sign(y) - y, -vy
    for side, paddle in ((1, player), (-1, opponent)):
        if was * side < 0.9 <= x * side and abs(y - paddle) <= half + 0.03:
            x, vx = 2 * 0.9 * side - x, -side * min(abs(vx) * settings["speedup"], speed)
            vy = np.clip(vy + settings["spin"] * (y - paddle) / (half + 0.03), -speed, speed)
    return (player, opponent, x, y, vx / speed, vy / speed), float(x < -1) - float(x > 1)


@pytest.mark.slow
@pytest.mark.parametrize("policy", [at_random(3), follow_in_pong])
def test_pong_moves_by_its_rules(policy):
    settings = {"paddle_size": 0.5, "paddle_speed": 0.05, "opponent_speed": 0.05, "points": 3}
    settings |= {"serve": 0.05, "speedup": 1.2, "max_speed": 0.09, "spin": 0.04}
    with fugu.vector.make("pong", 30, num_workers=1, env_kwargs=settings) as vec:
        rng = np.random.default_rng(0)
        vec.async_reset(seed=2)
        rows = vec.recv()
        wrong, points, bounces, compared = 0, 0, 0, 0
        for _ in range(500):
            before, acts, action = rows.obs.copy(), rows.mask.copy(), policy(rows.obs, rng)
            vec.send(action)
            rows = vec.recv()
            for i in np.flatnonzero(acts):
                expected, reward = pong_step([float(v) for v in before[i, :6]], action[i], settings)
                compared += 1
                if rows.reward[i] != reward:
                    wrong += 1  # a hit or miss by less than the float's last digits
                    continue
                won, lost = np.round(rows.obs[i, 6:] * 3), np.round(before[i, 6:] * 3)
                np.testing.assert_array_equal(won - lost, [reward > 0, reward < 0])
                assert rows.terminated[i] == (3 in won)
                if reward:
                    points += 1
                    assert rows.obs[i, 2] == 0
                    assert np.sign(rows.obs[i, 4]) == -reward  # served to the loser
                    continue
                bounces += before[i, 4] * rows.obs[i, 4] < 0
                if np.allclose(rows.obs[i, :6], expected, atol=2e-5):
                    continue
                wrong += 1
        assert compared > 12_000
        assert points > 20
        assert bounces > 80
        assert wrong <= 3


# ---- breakout


def test_a_breakout_paddle_that_follows_the_ball_clears_every_brick_and_a_random_one_hardly_any():
    followed = play("breakout", follow_in_breakout, steps=6000)
    assert followed.episodes > 50
    assert followed.mean_values == {"score": 108.0, "cleared": 1.0}
    assert followed.mean_return == 108
    log = play("breakout", at_random(3), steps=1000)
    assert 0 < log.mean_return < 5
    assert log.mean_values["cleared"] == 0


def test_breakout_skips_frames_as_if_each_were_a_step():
    with (
        fugu.vector.make("breakout", 32, num_workers=1) as whole,
        fugu.vector.make("breakout", 32, num_workers=1, env_kwargs={"frameskip": 1}) as single,
    ):
        obs, _ = whole.reset(seed=1)
        single.reset(seed=1)
        going, rng = np.ones(32, bool), np.random.default_rng(0)
        for _ in range(300):
            action = np.where(rng.random(32) < 0.1, rng.integers(0, 3, 32), follow_in_breakout(obs, rng))
            obs, reward, terminated, _, _ = whole.step(action)
            total, over = np.zeros(32), np.zeros(32, bool)
            for _ in range(4):
                frame, part, ended, _, _ = single.step(action)
                total += np.where(over, 0, part)
                over |= ended
            going &= ~over
            assert obs[going].tobytes() == frame[going].tobytes()
            np.testing.assert_array_equal(reward[going], total[going])
            assert not terminated[going].any()
        assert going.sum() > 3


def breakout_step(before, action, settings):
    """What one frame makes of (paddle, x, y, vx, vy, speed) and the bricks; None for the ball where it is lost."""
    paddle, x, y, vx, vy, speed = before[0] * 180, before[1] * 180, before[2] * 160, *before[3:5] * 2.5, before[7] * 2.5
    bricks = before[8:].reshape(6, 18).copy()
    half = settings["paddle_width"] / 2
    paddle = np.clip(paddle + (0, -1, 1)[action] * settings["paddle_speed"], half, 180 - half)

    def is_solid(px, py):
        if px <= 0 or px >= 180 or py <= 0:
            return True
        row, column = int((py - 20) // 5), int(px // 10)
        hit = 0 <= row < 6 and bricks[row, column] == 1
        if hit:
            bricks[row, column] = 0
        return hit

    if is_solid(x + vx + 2 * np.sign(vx), y):
        vx = -vx
    else:
        x += vx
    if is_solid(x, y + vy + 2 * np.sign(vy)):
        vy = -vy
    else:
        y += vy
    offset = (x - paddle) / (half + 2)
    if vy > 0 and y > 148 >= y - vy and abs(offset) <= 1:
        sine = np.clip(vx / speed + 0.5 * offset, -0.8, 0.8)
        if abs(sine) < 0.1:
            sine = 0.1 * np.sign(sine)
        speed = min(speed * settings["speedup"], 2.5)
        y, vx, vy = 2 * 148 - y, speed * sine, -speed * np.sqrt(1 - sine**2)
    ball = None if y > 160 else (x / 180, y / 160, vx / 2.5, vy / 2.5, speed / 2.5)
    return paddle / 180, ball, bricks


@pytest.mark.slow
def test_breakout_moves_by_its_rules():
    settings = {"paddle_width": 30.0, "paddle_speed": 2.5, "speedup": 1.1, "balls": 2, "frameskip": 1, "ball_speed": 2.0}
    with fugu.vector.make("breakout", 20, num_workers=1, env_kwargs=settings) as vec:
        rng = np.random.default_rng(0)
        vec.async_reset(seed=2)
        rows = vec.recv()
        seen = collections.Counter()
        for _ in range(1500):
            before, acts = rows.obs.copy(), rows.mask.copy()
            careless = rng.random(20) < np.where(np.arange(20) < 10, 0.15, 0.8)
            action = np.where(careless, rng.integers(0, 3, 20), follow_in_breakout(before, rng))
            vec.send(action)
            rows = vec.recv()
            for i in np.flatnonzero(acts):
                paddle, ball, bricks = breakout_step(before[i].astype(np.float64), action[i], settings)
                after = rows.obs[i]
                seen["compared"] += 1
                same = np.array_equal(after[8:].reshape(6, 18), bricks)
                balls = np.round([before[i, 5] * 2, after[5] * 2])
                if ball is None:
                    seen["lost"] += 1
                    same &= balls[1] == balls[0] - 1
                    if balls[1]:
                        same &= np.allclose(after[[0, 2, 7]], [0.5, 90 / 160, 2.0 / 2.5]) and after[4] > 0
                else:
                    same &= np.allclose(after[[0, 1, 2, 3, 4, 7]], [paddle, *ball], atol=2e-5) and balls[1] == balls[0]
                assert rows.reward[i] == before[i, 8:].sum() - after[8:].sum()
                assert after[6] == pytest.approx(after[8:].mean())
                assert rows.terminated[i] == (balls[1] == 0 or after[8:].sum() == 0)
                seen["bricks"] += int(rows.reward[i])
                seen["ended"] += int(rows.terminated[i])
                seen["wrong"] += not same  # an edge met or missed by less than the float's last digits
        assert seen["compared"] > 25_000
        assert min(seen["lost"], seen["bricks"], seen["ended"]) > 20
        assert seen["wrong"] <= 10, seen


# ---- snake

CELL = 6
OWNERS = np.array(
    [
        (96, 160, 78),
        (66, 112, 180),
        (226, 142, 50),
        (136, 88, 168),
        (236, 200, 76),
        (31, 143, 138),
        (220, 120, 170),
        (120, 170, 220),
    ]
)
FOOD, HEAD, FLOOR = (204, 72, 62), (250, 250, 248), (24, 28, 34)


def read_snake_picture(picture):
    """Who owns each cell [40, 40] (-1: nobody), where the food is, and where each snake's head is."""
    board = picture[CELL:-CELL, CELL:-CELL]
    corner, inner, middle = (board[k::CELL, k::CELL].astype(int) for k in (0, 1, 2))
    owner = np.full((40, 40), -1)
    for a, color in enumerate(OWNERS):
        owner[(corner == color).all(-1)] = a
    food = (inner == FOOD).all(-1)
    assert not (food & (owner >= 0)).any()
    assert ((owner >= 0) | (corner == FLOOR).all(-1)).all()
    heads = {int(owner[y, x]): (int(y), int(x)) for y, x in np.argwhere((middle == HEAD).all(-1))}
    assert sorted(heads) == list(range(8))
    return owner, food, heads


def view(owner, food, head, agent):
    cells = np.where(owner == agent, 2, np.where(owner >= 0, 3, np.where(food, 1, 0)))
    y, x = head
    return np.pad(cells, 5, constant_values=4)[y : y + 11, x : x + 11]


def forage(obs, rng):
    """Mostly to food next to the head, else to a random free cell; now and then anywhere."""
    around = np.stack([obs[:, 4, 5], obs[:, 5, 6], obs[:, 6, 5], obs[:, 5, 4]], 1)
    wish = rng.random(around.shape) + 2.0 * (around == 1) - 2.0 * (around > 1)
    return np.where(rng.random(len(obs)) < 0.03, rng.integers(0, 4, len(obs)), wish.argmax(1))


WAYS = ((-1, 0), (0, 1), (1, 0), (0, -1))


class SnakeModel:
    """Bodies as lists of cells, the head last."""

    def __init__(self, heads, settings):
        self.settings, self.turn = settings, 0
        self.bodies = [[heads[a]] for a in range(8)]
        self.growth, self.facing = [settings["start_length"] - 1] * 8, [None] * 8

    def start(self, agent, head):
        self.bodies[agent], self.growth[agent], self.facing[agent] = [head], self.settings["start_length"] - 1, None

    def target(self, agent, action):
        """The cell the agent turns to."""
        body = self.bodies[agent]
        if len(body) > 1 and (action + 2) % 4 == self.facing[agent]:
            action = self.facing[agent]
        self.facing[agent] = action
        return body[-1][0] + WAYS[action][0], body[-1][1] + WAYS[action][1]

    def move(self, agent, cell, eats):
        """True: dead."""
        body = self.bodies[agent]
        taken = {c for a, other in enumerate(self.bodies) for c in (other[1:] if a == agent and not self.growth[a] else other)}
        if min(cell) < 0 or max(cell) > 39 or cell in taken:
            return True
        if eats and len(body) + self.growth[agent] < self.settings["max_length"]:
            self.growth[agent] += 1
        body.append(cell)
        if self.growth[agent]:
            self.growth[agent] -= 1
        else:
            body.pop(0)
        return False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "settings"),
    [
        (at_random(4), {"food": 32, "start_length": 3, "max_length": 64, "max_steps": 1000}),
        (forage, {"food": 200, "start_length": 3, "max_length": 128, "max_steps": 1000}),
        (forage, {"food": 200, "start_length": 1, "max_length": 8, "max_steps": 40}),
    ],
)
def test_snakes_move_eat_grow_and_die_by_the_rules_and_see_what_the_picture_shows(policy, settings):
    rng = np.random.default_rng(0)
    with fugu.vector.make("snake", 1, num_workers=1, env_kwargs=settings) as vec:
        vec.async_reset(seed=4)
        rows = vec.recv()
        owner, food, heads = read_snake_picture(vec.call("render")[0])
        model = SnakeModel(heads, settings)
        seen = collections.Counter()
        for turn in range(1250):
            acts, action = rows.mask.copy(), policy(rows.obs, rng)
            vec.send(action)
            rows = vec.recv()
            left = {(int(y), int(x)) for y, x in np.argwhere(food)}
            owner, food, heads = read_snake_picture(vec.call("render")[0])
            now = {(int(y), int(x)) for y, x in np.argwhere(food)}
            assert len(now) == settings["food"]
            for a in np.flatnonzero(~acts):
                model.start(a, heads[a])
            eaten = 0
            for a in [(turn + i) % 8 for i in range(8)]:
                if not acts[a]:
                    assert rows.first[a] and rows.mask[a] and rows.reward[a] == 0 and not rows.terminated[a]
                    continue

                cell = model.target(a, int(action[a]))
                came_now = eaten > 0 and cell not in now and rows.reward[a] == 1  # food that came and went within this step
                eats = cell in left or came_now
                dead = model.move(a, cell, eats)
                left.discard(cell)
                eaten += eats
                assert rows.reward[a] == (-1 if dead else eats)
                assert rows.terminated[a] == dead
                assert rows.mask[a] == (not dead and not rows.truncated[a])
                assert not rows.first[a]
                seen["dead"] += dead
                seen["truncated"] += int(rows.truncated[a])
                seen["longest"] = max(seen["longest"], len(model.bodies[a]))
                seen["agent steps"] += 1
            assert left <= now
            for a in range(8):
                assert heads[a] == model.bodies[a][-1]
                assert {(int(y), int(x)) for y, x in np.argwhere(owner == a)} == set(model.bodies[a])
                assert len(set(model.bodies[a])) == len(model.bodies[a])
                np.testing.assert_array_equal(rows.obs[a], view(owner, food, heads[a], a))
            seen["eaten"] += eaten
        log = vec.drain_log()
        assert log.episodes == seen["dead"] + seen["truncated"] > 20
        assert seen["eaten"] > 50
        assert seen["agent steps"] > 9000
        assert seen["truncated"] > 20 or settings["max_steps"] > 100
        if policy is forage:
            assert seen["longest"] == 8 if settings["max_length"] == 8 else seen["longest"] > 20


# ---- tetris

PIECES = {
    "I": ["....", "XXXX", "....", "...."],
    "O": ["XX", "XX"],
    "T": [".X.", "XXX", "..."],
    "S": [".XX", "XX.", "..."],
    "Z": ["XX.", ".XX", "..."],
    "J": ["X..", "XXX", "..."],
    "L": ["..X", "XXX", "..."],
}
TURNS = [
    [[(int(r), int(c)) for r, c in np.argwhere(np.rot90(np.array([list(line) for line in box]) == "X", -k))] for k in range(4)]
    for box in PIECES.values()
]
LINE_REWARD = (0, 1, 3, 5, 8)


class TetrisModel:
    """The rules on a 20 x 10 array; pieces are told from outside."""

    def __init__(self, piece, gravity):
        self.board, self.gravity = np.zeros((20, 10), int), gravity
        self.start(piece)

    def start(self, piece):
        self.piece, self.turn, self.age = piece, 0, 0
        self.y, self.x = (-1, 3) if piece == 0 else (0, 4 if piece == 1 else 3)

    def cells(self, dy=0, dx=0, turn=None):
        return [(self.y + dy + r, self.x + dx + c) for r, c in TURNS[self.piece][self.turn if turn is None else turn]]

    def is_free(self, cells):
        return all(y < 20 and 0 <= x < 10 and (y < 0 or not self.board[y, x]) for y, x in cells)

    def lower(self):
        free = self.is_free(self.cells(dy=1))
        self.y += free
        return free

    def lock(self):
        """Lines cleared, and whether a cell was above the board."""
        above = any(y < 0 for y, _ in self.cells())
        for y, x in self.cells():
            if y >= 0:
                self.board[y, x] = 1
        full = self.board.all(1)
        self.board = np.concatenate([np.zeros((full.sum(), 10), int), self.board[~full]])
        return int(full.sum()), above

    def step(self, action, next_piece):
        """Reward and whether it is over; ``next_piece`` appears if this one is locked."""
        reward, lock = 0.0, False
        if action in (1, 2) and self.is_free(self.cells(dx=(-1, 1)[action - 1])):
            self.x += (-1, 1)[action - 1]
        if action == 3:
            turn = (self.turn + 1) % 4
            for dx in (0, -1, 1):
                if self.is_free(self.cells(dx=dx, turn=turn)):
                    self.x, self.turn = self.x + dx, turn
                    break
        if action == 4:
            lock = not self.lower()
            reward += 0.01 * (not lock)
        if action == 5:
            while self.lower():
                reward += 0.01
            lock = True
        if not lock:
            self.age += 1
            if self.age == self.gravity:
                self.age, lock = 0, not self.lower()
        self.locked_above = False
        if not lock:
            return reward, False
        lines, self.locked_above = self.lock()
        self.start(next_piece)
        over = self.locked_above or not self.is_free(self.cells())
        return reward + LINE_REWARD[lines] - over, over

    def shown(self):
        board = self.board.copy()
        for y, x in self.cells():
            if y >= 0:
                board[y, x] = -1
        return board


def best_drop(model):
    """Actions that drop the piece where it leaves few holes, and the last column to pieces that fill four lines."""
    best, actions = -np.inf, [5]
    for turn, dx in itertools.product(range(4), range(-5, 6)):
        trial = TetrisModel(model.piece, 1)
        trial.board, trial.turn, trial.x = model.board.copy(), turn, trial.x + dx
        if not trial.is_free(trial.cells()):
            continue
        while trial.lower():
            pass
        lines, above = trial.lock()
        heights = np.where(trial.board.any(0), 20 - trial.board.argmax(0), 0)
        holes = heights.sum() - trial.board.sum()
        score = (
            -8 * holes
            - heights.sum()
            - np.abs(np.diff(heights[:9])).sum()
            - 20 * (heights[9] > 0)
            + 100 * (lines == 4)
            - 999 * above
        )
        if score > best:
            best, actions = score, [3] * turn + [1 if dx < 0 else 2] * abs(dx) + [5]
    return actions


def run_beside_model(policy, num_envs, steps, gravity):
    """Plays, compares everything in every step, and tells what came up."""
    rng, seen = np.random.default_rng(0), collections.Counter()
    with fugu.vector.make("tetris", num_envs, num_workers=1, env_kwargs={"gravity": gravity}) as vec:
        vec.async_reset(seed=3)
        rows = vec.recv()
        models, dealt = [None] * num_envs, [[] for _ in range(num_envs)]
        for _ in range(steps + 1):
            piece, following = rows.obs[:, 200:207].argmax(1), rows.obs[:, 207:214].argmax(1)
            assert (rows.obs[:, 200:207].sum(1) == 1).all()
            assert (rows.obs[:, 207:214].sum(1) == 1).all()
            for i in np.flatnonzero(rows.first):
                models[i], dealt[i] = TetrisModel(piece[i], gravity), [piece[i], following[i]]
                np.testing.assert_array_equal(rows.obs[i, :200].reshape(20, 10), models[i].shown())
            acts, action = rows.mask.copy(), np.array([policy(i, models[i], rng) for i in range(num_envs)])
            vec.send(action)
            rows = vec.recv()
            for i in np.flatnonzero(acts):
                model, board = models[i], models[i].board.sum()
                reward, over = model.step(action[i], following[i])
                assert rows.reward[i] == pytest.approx(reward, abs=1e-5)
                assert rows.terminated[i] == over
                np.testing.assert_array_equal(rows.obs[i, :200].reshape(20, 10), model.shown())
                assert rows.obs[i, 200:207].argmax() == model.piece
                assert rows.obs[i, 214] == pytest.approx(model.age / gravity)
                if model.board.sum() != board or over:  # a piece was locked: four cells more, ten less per line
                    dealt[i].append(rows.obs[i, 207:214].argmax())
                    seen["pieces"] += 1
                seen["over"] += over
                seen["only above"] += over and model.locked_above and model.is_free(model.cells())
                seen[f"reward {int(reward)}"] += 1
            for i in np.flatnonzero(rows.terminated):
                for start in range(0, len(dealt[i]), 7):
                    bag = dealt[i][start : start + 7]
                    assert len(set(bag)) == len(bag)
    return seen


@pytest.mark.slow
@pytest.mark.parametrize(("gravity", "to_the_left"), [(1, False), (4, False), (4, True)])
def test_tetris_equals_a_model_of_its_rules_under_random_actions(gravity, to_the_left):
    chances = [0.05, 0.55, 0.0, 0.3, 0.0, 0.1] if to_the_left else [0.1, 0.25, 0.25, 0.3, 0.05, 0.05]
    seen = run_beside_model(lambda i, model, rng: int(rng.choice(6, p=chances)), 8, 6000 if to_the_left else 2000, gravity)
    assert seen["over"] > 20
    if to_the_left:  # the middle is free, and it is over because of a cell above the board
        assert seen["only above"] > 0


@pytest.mark.slow
def test_tetris_equals_a_model_of_its_rules_when_lines_are_cleared():
    plans = collections.defaultdict(list)

    def policy(i, model, rng):
        plans[i] = plans[i] or best_drop(model)
        return plans[i].pop(0)

    seen = run_beside_model(policy, 4, 1000, 1000)
    assert min(seen[f"reward {r}"] for r in (1, 8)) > 3, seen
    assert seen["pieces"] > 600
