"""Networks: sizes and shapes by arithmetic, values against a slow computation of their own, gradients."""

import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from async_dqn.envs.packing import Packing
from async_dqn.nn.layout import Layout
from async_dqn.nn.networks import Head, make_network, unpack
from async_dqn.nn.policies import NEVER


def conv(size, channels, filters):
    return size * size * channels * filters + filters


def dense(inputs, outputs):
    return inputs * outputs + outputs


def q_network(name, shape, stack, num_actions, **options):
    return make_network(name, shape, stack, {"q_values": Head(num_actions)}, **options)


NATURE_CONVOLUTIONS = conv(8, 4, 32) + conv(4, 32, 64) + conv(3, 64, 64)
NIPS_CONVOLUTIONS = conv(8, 4, 16) + conv(4, 16, 32)
NATURE_FEATURES, NIPS_FEATURES = 7 * 7 * 64, 9 * 9 * 32  # 84 -> 20 -> 9 (-> 7)


@pytest.mark.parametrize(
    ("name", "shape", "stack", "num_actions", "dueling", "expected"),
    [
        ("nips", (84, 84), 4, 6, False, NIPS_CONVOLUTIONS + dense(NIPS_FEATURES, 256) + dense(256, 6)),
        ("nips", (84, 84), 4, 6, False, 677_686),
        ("nature", (84, 84), 4, 6, False, NATURE_CONVOLUTIONS + dense(NATURE_FEATURES, 512) + dense(512, 6)),
        ("nature", (84, 84), 4, 6, False, 1_687_206),
        (
            "nature",
            (84, 84),
            4,
            18,
            True,
            NATURE_CONVOLUTIONS + 2 * dense(NATURE_FEATURES, 512) + dense(512, 1) + dense(512, 18),
        ),
        ("mlp", (4,), 1, 2, False, dense(4, 128) + dense(128, 128) + dense(128, 2)),
        ("mlp", (4,), 3, 2, False, dense(3 * 4, 128) + dense(128, 128) + dense(128, 2)),
        ("mlp", (4,), 1, 2, True, dense(4, 128) + 2 * dense(128, 128) + dense(128, 1) + dense(128, 2)),
    ],
)
def test_number_of_parameters(name, shape, stack, num_actions, dueling, expected):
    network = q_network(name, shape, stack, num_actions, dueling=dueling)
    assert sum(map(math.prod, network.shapes.values())) == expected


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize(
    ("name", "shape", "stack", "dtype"),
    [("nature", (84, 84), 4, np.uint8), ("nips", (84, 84), 4, np.uint8), ("mlp", (4,), 1, np.float32)],
)
def test_gives_a_value_for_every_action_of_every_observation(name, shape, stack, dtype, dueling):
    network = q_network(name, shape, stack, 5, dueling=dueling)
    observation = np.random.default_rng(0).integers(0, 256, (3, stack, *shape)).astype(dtype)
    values = network.apply(network.init(np.random.default_rng(0)), observation)["q_values"]
    assert values.shape == (3, 5)
    assert values.dtype == tf.float32
    assert np.ptp(values.numpy()) > 0


@pytest.mark.parametrize("name", ["nature", "nips"])
def test_convolutions_do_not_take_vectors(name):
    with pytest.raises(ValueError, match=rf"'{name}' does not fit observations of shape \(4,\)"):
        q_network(name, (4,), 1, 2)


def test_mlp_does_not_take_frames():
    with pytest.raises(ValueError, match=r"'mlp' does not fit observations of shape \(84, 84\)"):
        q_network("mlp", (84, 84), 4, 2)


def test_pictures_must_be_large_enough():
    with pytest.raises(ValueError, match=r"'nature' needs pictures of at least 36 pixels, not \(84, 35\)"):
        q_network("nature", (84, 35), 4, 2)
    assert q_network("nature", (36, 37), 4, 2).shapes["hidden0/w"] == (1 * 1 * 64, 512)
    assert q_network("nips", (20, 21), 4, 2).shapes["hidden0/w"] == (1 * 1 * 32, 256)


def test_init_is_the_same_for_the_same_generator_and_differs_for_another():
    network = q_network("nips", (36, 36), 2, 3)
    first, second, other = (network.init(np.random.default_rng(seed)) for seed in (5, 5, 6))
    for name in network.shapes:
        np.testing.assert_array_equal(first[name], second[name])
        assert (first[name] != other[name]).any()


@pytest.mark.parametrize(
    ("prefix", "fan_in"),
    [("conv0", 8 * 8 * 4), ("conv1", 4 * 4 * 16), ("hidden0", NIPS_FEATURES), ("q_values", 256)],
)
def test_init_is_bounded_by_the_fan_in_and_fills_that_range(prefix, fan_in):
    parameters = q_network("nips", (84, 84), 4, 6).init(np.random.default_rng(0))
    bound = 1 / math.sqrt(fan_in)
    for name in (f"{prefix}/w", f"{prefix}/b"):
        assert parameters[name].dtype == np.float32
        assert np.abs(parameters[name]).max() <= bound * (1 + 1e-6)
    assert np.abs(parameters[f"{prefix}/w"]).max() > 0.95 * bound
    assert abs(parameters[f"{prefix}/w"].mean()) < 0.1 * bound


def test_dueling_values_are_the_state_value_on_average():
    network = q_network("mlp", (4,), 1, 3, dueling=True)
    parameters = network.init(np.random.default_rng(0))
    observation = np.random.default_rng(1).normal(size=(6, 1, 4)).astype(np.float32)
    hidden = np.maximum(observation[:, 0] @ parameters["hidden0/w"] + parameters["hidden0/b"], 0)
    hidden = np.maximum(hidden @ parameters["value_hidden/w"] + parameters["value_hidden/b"], 0)
    value = (hidden @ parameters["value/w"] + parameters["value/b"])[:, 0]
    q = network.apply(parameters, observation)["q_values"].numpy()
    np.testing.assert_allclose(q.mean(axis=1), value, atol=1e-6)
    assert np.ptp(q, axis=1).min() > 1e-3


def slow_convolution(x, w, b, stride):
    """[H, W, C] by every window on its own."""
    size, rows = w.shape[0], (x.shape[0] - w.shape[0]) // stride + 1
    out = np.zeros((rows, (x.shape[1] - size) // stride + 1, w.shape[3]))
    for i, j, f in np.ndindex(*out.shape):
        window = x[i * stride : i * stride + size, j * stride : j * stride + size]
        out[i, j, f] = np.sum(window * w[..., f]) + b[f]
    return out


def slow_activation(parameters, layer, x):
    """ReLU, after layer norm of every row [F] on its own where there is one."""
    if f"{layer}/scale" in parameters:
        x = x.copy()
        for place in np.ndindex(x.shape[:-1]):
            x[place] = (x[place] - x[place].mean()) / np.sqrt(x[place].var() + 1e-6)
        x = x * parameters[f"{layer}/scale"] + parameters[f"{layer}/offset"]
    return np.maximum(x, 0)


@pytest.mark.parametrize("center_frames", [False, True])
@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize(("name", "height", "width"), [("nips", 20, 28), ("nature", 36, 40)])
def test_forward_pass_agrees_with_one_in_plain_loops(name, height, width, layer_norm, center_frames):
    network = q_network(name, (height, width), 2, 3, center_frames=center_frames, layer_norm=layer_norm)
    rng = np.random.default_rng(0)
    parameters = network.init(rng)
    for key in [key for key in parameters if key.endswith(("/scale", "/offset"))]:
        parameters[key] += rng.normal(scale=0.3, size=parameters[key].shape).astype(np.float32)
    observation = np.random.default_rng(1).integers(0, 256, (2, 2, height, width), np.uint8)
    expected = []
    for stacked in observation:
        x = np.moveaxis(stacked, 0, 2) / 255.0
        x = 3 * (x - x.mean()) if center_frames else x
        for index, stride in enumerate((4, 2) if name == "nips" else (4, 2, 1)):
            x = slow_convolution(x, parameters[f"conv{index}/w"], parameters[f"conv{index}/b"], stride)
            x = slow_activation(parameters, f"conv{index}", x)
        hidden = slow_activation(parameters, "hidden0", x.ravel() @ parameters["hidden0/w"] + parameters["hidden0/b"])
        expected.append(hidden @ parameters["q_values/w"] + parameters["q_values/b"])
    np.testing.assert_allclose(network.apply(parameters, observation)["q_values"], expected, rtol=1e-4, atol=1e-5)


def test_layer_norm_by_hand():
    """Half of the units are 1 and half of them 3: mean 2, variance 1, so -1 and 1 once normalised."""
    network = q_network("mlp", (1,), 1, 1, layer_norm=True)
    parameters = {key: np.zeros(shape, np.float32) for key, shape in network.shapes.items()}
    high = np.arange(128) % 2 == 0
    parameters["hidden0/b"] = np.where(high, 3, 1).astype(np.float32)
    parameters["hidden0/scale"] = np.where(high, 2, 4).astype(np.float32)
    parameters["hidden0/offset"] = np.where(high, 0.5, 5).astype(np.float32)  # so 2 * 1 + 0.5 and 4 * -1 + 5
    parameters["hidden1/w"][:, 0] = 1 / 64  # unit 0 is 2.5 + 1 and every other 0: mean 3.5 / 128
    parameters["hidden1/scale"][0] = 1
    parameters["q_values/w"][0] = 10
    mean = 3.5 / 128
    variance = 3.5**2 / 128 - mean**2
    expected = 10 * (3.5 - mean) / math.sqrt(variance)
    found = network.apply(parameters, np.ones((1, 1, 1), np.float32))["q_values"]
    np.testing.assert_allclose(found, [[expected]], rtol=1e-5)


@pytest.mark.parametrize("dueling", [False, True])
def test_layer_norm_has_a_scale_and_an_offset_behind_the_parameters_of_the_network_without_it(dueling):
    plain, normed = (q_network("nips", (20, 20), 2, 3, dueling=dueling, layer_norm=norm) for norm in (False, True))
    begin, own = plain.init(np.random.default_rng(0)), normed.init(np.random.default_rng(0))
    assert list(normed.shapes)[: len(begin)] == list(begin)
    for key in begin:
        np.testing.assert_array_equal(own[key], begin[key])
    hidden = ["value_hidden", "advantage_hidden"] if dueling else ["hidden0"]
    added = list(normed.shapes)[len(begin) :]
    assert added == [f"{layer}/{part}" for layer in ["conv0", "conv1", *hidden] for part in ("scale", "offset")]
    for key in added:
        assert normed.shapes[key] == normed.shapes[f"{key.partition('/')[0]}/b"]
        assert (own[key] == key.endswith("/scale")).all()


@pytest.mark.parametrize("center_frames", [False, True])
@pytest.mark.parametrize(
    ("name", "shape", "dtype", "bounds"),
    [
        ("nips", (21, 26), np.uint8, (0, 255)),
        ("nips", (20, 24), np.float32, (-1, 3)),
        ("nips", (20, 24), np.uint8, (1, 200)),
        ("nips", (22, 20, 3), np.uint8, (0, 255)),
        ("small", (3, 5), np.uint8, (0, 1)),
        ("small", (7, 6, 3), np.uint8, (0, 10)),
        ("small", (7, 6, 2), np.float32, (-1, 1)),
    ],
)
def test_pictures_of_any_size_and_type_agree_with_plain_loops(name, shape, dtype, bounds, center_frames):
    network = q_network(name, shape, 2, 3, center_frames=center_frames, bounds=bounds)
    parameters = network.init(np.random.default_rng(0))
    rng, (low, high) = np.random.default_rng(1), bounds
    observation = rng.uniform(low, high + (dtype == np.uint8), (2, 2, *shape)).astype(dtype)
    expected = []
    for stacked in observation:
        frames = stacked.reshape(2, *shape[:2], -1)
        x = (np.concatenate([*frames], axis=2) - low) / (high - low)  # the channels of one frame after the other's
        x = 3 * (x - x.mean()) if center_frames else x
        for index, stride in enumerate((4, 2) if name == "nips" else (1, 1)):
            x = np.pad(x, ((1, 1), (1, 1), (0, 0))) if name == "small" else x
            x = slow_convolution(x, parameters[f"conv{index}/w"], parameters[f"conv{index}/b"], stride)
            x = np.maximum(x, 0)
        hidden = np.maximum(x.ravel() @ parameters["hidden0/w"] + parameters["hidden0/b"], 0)
        expected.append(hidden @ parameters["q_values/w"] + parameters["q_values/b"])
    np.testing.assert_allclose(network.apply(parameters, observation)["q_values"], expected, rtol=1e-4, atol=1e-5)


def test_impala_is_that_of_the_paper():
    network = q_network("impala", (84, 84), 4, 6)
    blocks = conv(3, 4, 16) + 4 * conv(3, 16, 16) + conv(3, 16, 32) + 4 * conv(3, 32, 32) + 5 * conv(3, 32, 32)
    assert sum(map(math.prod, network.shapes.values())) == blocks + dense(11 * 11 * 32, 256) + dense(256, 6)
    assert q_network("impala", (10, 9), 1, 6).shapes["hidden0/w"] == (2 * 2 * 32, 256)


def test_a_residual_block_of_impala_adds_to_what_goes_in():
    network = q_network("impala", (8, 8), 1, 2)
    parameters = {name: np.zeros(shape, np.float32) for name, shape in network.shapes.items()}
    for section in range(3):
        parameters[f"conv{section}/w"][1, 1, 0, 0] = 1  # passes the first channel on; 8 -> 4 -> 2 -> 1
    parameters["hidden0/w"][0, 0] = parameters["q_values/w"][0, 1] = 1
    observation = np.zeros((1, 1, 8, 8), np.uint8)
    observation[0, 0, 1, 2] = 51
    np.testing.assert_allclose(network.apply(parameters, observation)["q_values"], [[0, 51 / 255]], rtol=1e-6)
    parameters["conv0_block1_1/b"][0] = 1  # which no later ReLU takes away
    np.testing.assert_allclose(network.apply(parameters, observation)["q_values"], [[0, 1 + 51 / 255]], rtol=1e-6)


def test_parts_of_a_packed_observation_are_taken_apart():
    packing = Packing(mask=3, picture=(4, 5), vector=2)
    rng = np.random.default_rng(0)
    masks = np.array([[[1, 1, 1], [1, 0, 1]], [[0, 0, 1], [0, 1, 1]]])
    pictures = rng.integers(0, 256, (2, 2, 4, 5)).astype(np.uint8)
    vectors = rng.normal(size=(2, 2, 2)).astype(np.float32)
    observation = np.stack(
        [[packing.pack(masks[b, s], pictures[b, s], vectors[b, s]) for s in range(2)] for b in range(2)]
    )
    found = unpack(tf.constant(observation), packing)
    for ours, theirs in zip(found, (masks[:, -1].astype(bool), pictures, vectors), strict=True):
        np.testing.assert_array_equal(ours, theirs)

    network = q_network("small", (observation.shape[-1],), 2, 3, packing=packing)
    parameters = network.init(np.random.default_rng(0))
    assert parameters["hidden0/w"].shape == (4 * 5 * 32 + 2 * 2, 128)
    values = network.apply(parameters, observation)["q_values"].numpy()
    np.testing.assert_array_equal(values == NEVER, [[False, True, False], [True, False, False]])
    # The vector goes in behind the features of the picture.
    observation[..., -8:] = 0
    parameters["hidden0/w"][-4:] = 0
    silent = network.apply(parameters, observation)["q_values"].numpy()
    alone = q_network("small", (4, 5), 2, 3)
    parameters["hidden0/w"] = parameters["hidden0/w"][:-4]
    expected = alone.apply(parameters, pictures)["q_values"].numpy()
    np.testing.assert_allclose(silent[silent != NEVER], expected[silent != NEVER], rtol=1e-5)


@settings(deadline=None, max_examples=15)
@given(st.integers(1, 155))
def test_with_centred_frames_a_brighter_screen_changes_nothing(brightness):
    network = q_network("nips", (36, 36), 2, 3, center_frames=True)
    parameters = network.init(np.random.default_rng(0))
    observation = np.random.default_rng(1).integers(0, 101, (1, 2, 36, 36), np.uint8)
    brighter = observation + np.uint8(brightness)
    np.testing.assert_allclose(
        network.apply(parameters, observation)["q_values"],
        network.apply(parameters, brighter)["q_values"],
        rtol=1e-4,
        atol=1e-5,
    )


def test_without_centring_a_brighter_screen_changes_the_values():
    network = q_network("nips", (36, 36), 2, 3, center_frames=False)
    parameters = network.init(np.random.default_rng(0))
    dark, bright = (network.apply(parameters, np.full((1, 2, 36, 36), grey, np.uint8))["q_values"] for grey in (0, 200))
    assert np.abs(dark - bright).max() > 1e-3


def test_each_stack_of_a_minibatch_is_centred_on_its_own():
    network = q_network("nips", (36, 36), 2, 3, center_frames=True)
    parameters = network.init(np.random.default_rng(0))
    observation = np.random.default_rng(1).integers(0, 256, (3, 2, 36, 36), np.uint8)
    together = network.apply(parameters, observation)["q_values"]
    alone = [network.apply(parameters, observation[i : i + 1])["q_values"][0] for i in range(3)]
    np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["nips", "nature", "mlp"])
@pytest.mark.parametrize(("dueling", "layer_norm"), [(False, False), (True, False), (False, True)])
def test_in_bfloat16_values_and_gradients_agree_with_float32(name, dueling, layer_norm):
    """Values within 1 % of their norm, gradients within 20 %: most of their terms cancel, and the errors do not."""
    shape, stack, dtype = ((4,), 1, np.float32) if name == "mlp" else ((84, 84), 4, np.uint8)
    options = {"dueling": dueling, "layer_norm": layer_norm, "center_frames": True}
    exact, rough = (
        q_network(name, shape, stack, 6, compute_dtype=compute_dtype, **options)
        for compute_dtype in ("float32", "bfloat16")
    )
    rng = np.random.default_rng(0)
    parameters = {key: tf.constant(array) for key, array in exact.init(rng).items()}
    observation = rng.integers(0, 256, (32, stack, *shape)).astype(dtype)
    weights = rng.normal(size=(32, 6)).astype(np.float32)
    found = []
    for network in (exact, rough):
        with tf.GradientTape() as tape:
            tape.watch(parameters)
            values = network.apply(parameters, observation)["q_values"]
            loss = tf.reduce_sum(values * weights)
        gradients = tape.gradient(loss, parameters)
        assert all(array.dtype == tf.float32 for array in [values, *gradients.values()])
        found.append([values.numpy(), *(gradient.numpy() for gradient in gradients.values())])
    for bound, ours, theirs in zip([0.01] + [0.2] * len(parameters), *found, strict=True):
        assert np.linalg.norm(ours - theirs) <= bound * np.linalg.norm(ours)
    assert any((ours != theirs).any() for ours, theirs in zip(*found, strict=True))  # it did compute in bfloat16


@pytest.mark.parametrize("dueling", [False, True])
def test_gradient_through_the_flat_vector_is_that_of_the_named_arrays(dueling):
    network = q_network("nips", (20, 20), 2, 3, dueling=dueling)
    layout = Layout(network.shapes)
    arrays = network.init(np.random.default_rng(0))
    observation = np.random.default_rng(1).integers(0, 256, (2, 2, 20, 20), np.uint8)
    flat, named = tf.constant(layout.flatten(arrays)), {name: tf.constant(array) for name, array in arrays.items()}
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([flat, named])
        through_flat = tf.reduce_sum(network.apply(layout.unflatten(flat), observation)["q_values"] ** 2)
        through_named = tf.reduce_sum(network.apply(named, observation)["q_values"] ** 2)
    gradients = tape.gradient(through_named, named)
    expected = layout.flatten({name: gradient.numpy() for name, gradient in gradients.items()})
    np.testing.assert_allclose(tape.gradient(through_flat, flat), expected, rtol=1e-5, atol=1e-6)
    assert np.count_nonzero(expected) > len(expected) / 10


@pytest.mark.parametrize(
    ("name", "dueling", "layers"),
    [
        ("nature", False, ["conv0", "conv1", "conv2", "hidden0", "q_values"]),
        ("nature", True, ["conv0", "conv1", "conv2", "value_hidden", "value", "advantage_hidden", "advantage"]),
        ("mlp", False, ["hidden0", "hidden1", "q_values"]),
        ("mlp", True, ["hidden0", "value_hidden", "value", "advantage_hidden", "advantage"]),
    ],
)
def test_order_of_the_flat_vector_and_of_the_draws(name, dueling, layers):
    """Checkpoints are flat vectors: they are read wrongly where this order changes."""
    network = q_network(name, (4,) if name == "mlp" else (84, 84), 4, 6, dueling=dueling)
    assert list(network.shapes) == [f"{layer}/{part}" for layer in layers for part in "wb"]
    parameters, rng = network.init(np.random.default_rng(2)), np.random.default_rng(2)
    for layer in layers:
        bound = 1 / math.sqrt(np.prod(network.shapes[f"{layer}/w"][:-1]))
        for key in (f"{layer}/w", f"{layer}/b"):
            np.testing.assert_array_equal(parameters[key], rng.uniform(-bound, bound, network.shapes[key]).astype("f4"))


POLICY_AND_VALUE = {"logits": Head(6, scale=0.01), "value": Head(1)}


@pytest.mark.parametrize("compute_dtype", ["float32", "bfloat16"])
def test_heads_share_the_torso(compute_dtype):
    network = make_network("nips", (84, 84), 4, POLICY_AND_VALUE, compute_dtype=compute_dtype)
    assert list(network.shapes)[-6:] == ["hidden0/w", "hidden0/b", "logits/w", "logits/b", "value/w", "value/b"]
    size = NIPS_CONVOLUTIONS + dense(NIPS_FEATURES, 256) + dense(256, 6) + dense(256, 1)
    assert sum(map(math.prod, network.shapes.values())) == size
    parameters = network.init(np.random.default_rng(0))
    observation = np.random.default_rng(1).integers(0, 256, (3, 4, 84, 84), np.uint8)
    outputs = network.apply(parameters, observation)
    assert {name: (output.shape, output.dtype) for name, output in outputs.items()} == {
        "logits": ((3, 6), tf.float32),
        "value": ((3, 1), tf.float32),
    }
    for name, head in POLICY_AND_VALUE.items():
        alone = make_network("nips", (84, 84), 4, {name: head}, compute_dtype=compute_dtype)
        np.testing.assert_array_equal(
            alone.apply({key: parameters[key] for key in alone.shapes}, observation)[name], outputs[name]
        )


def test_the_scale_of_a_head_multiplies_its_initial_weights_and_biases():
    scaled = make_network("mlp", (4,), 1, POLICY_AND_VALUE).init(np.random.default_rng(0))
    plain = make_network("mlp", (4,), 1, {"logits": Head(6), "value": Head(1)}).init(np.random.default_rng(0))
    for name, array in scaled.items():
        scale = 0.01 if name.startswith("logits/") else 1
        np.testing.assert_allclose(array, plain[name] * scale, rtol=1e-6)


def test_a_dueling_network_has_one_head():
    with pytest.raises(ValueError, match=r"one head, not \['q_values', 'value'\]"):
        make_network("mlp", (4,), 1, {"q_values": Head(2), "value": Head(1)}, dueling=True)


def test_a_head_with_atoms_gives_so_many_numbers_for_each_output():
    with_atoms = make_network("mlp", (4,), 1, {"logits": Head(3, atoms=5)})
    flat = make_network("mlp", (4,), 1, {"logits": Head(3 * 5)})
    params = flat.init(np.random.default_rng(0))
    observation = np.random.default_rng(1).normal(size=(6, 1, 4)).astype(np.float32)
    found = with_atoms.apply(params, observation)["logits"]
    assert with_atoms.shapes == flat.shapes
    np.testing.assert_array_equal(found, flat.apply(params, observation)["logits"].numpy().reshape(6, 3, 5))


def test_dueling_adds_the_streams_atom_by_atom():
    network = make_network("mlp", (4,), 1, {"logits": Head(3, atoms=5)}, dueling=True)
    parameters = network.init(np.random.default_rng(0))
    observation = np.random.default_rng(1).normal(size=(6, 1, 4)).astype(np.float32)
    hidden = np.maximum(observation[:, 0] @ parameters["hidden0/w"] + parameters["hidden0/b"], 0)

    def stream(name):
        own = np.maximum(hidden @ parameters[f"{name}_hidden/w"] + parameters[f"{name}_hidden/b"], 0)
        return (own @ parameters[f"{name}/w"] + parameters[f"{name}/b"]).reshape(6, -1, 5)

    value, advantage = stream("value"), stream("advantage")
    assert (value.shape, advantage.shape) == ((6, 1, 5), (6, 3, 5))
    expected = value + advantage - advantage.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(network.apply(parameters, observation)["logits"], expected, atol=1e-5)
