"""Models as loss functions, for training steps whose parallel plan is searched: those of Unity's evaluation (Unger et al., OSDI 2022,
table 2 and the artifact's examples/cpp), NCF, and a small convolutional network.

A model is `f(w, sizes, *inputs)`: it takes each weight from `w` in order of use, and returns the loss. Biases are left out unless a
size says otherwise. Images are NHWC. Importing this file imports JAX: set JAX_PLATFORMS before."""
import math

import jax
import jax.numpy as jnp
from jax import lax


class Weights:
    """Weights by name. Without arrays, the model is traced to find which weights it has."""

    def __init__(self, arrays=None):
        self.arrays, self.shapes = arrays, {}

    def take(self, kind, *dims):
        name = f"{kind}{len(self.shapes):03}"
        self.shapes[name] = jax.ShapeDtypeStruct(dims, jnp.float32)
        return jnp.zeros(dims) if self.arrays is None else self.arrays[name]


def dense(w, x, width, bias=False):
    y = x @ w.take("dense", x.shape[-1], width)
    return y + w.take("bias", width) if bias else y


def conv(w, x, channels, size, stride=1, padding=(0, 0), groups=1):
    """`size` and `padding` (before and after alike) are for height and width; a single size is for both."""
    height, width = size if isinstance(size, tuple) else (size, size)
    kernel = w.take("conv", height, width, x.shape[-1] // groups, channels)
    around = [(n, n) for n in (padding if isinstance(padding, tuple) else (padding, padding))]
    layout = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, kernel, (stride, stride), around, dimension_numbers=layout, feature_group_count=groups)


def max_pool(x, size, stride, padding=0):
    around = ((0, 0), (padding, padding), (padding, padding), (0, 0))
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, size, size, 1), (1, stride, stride, 1), around)


def mean_pool(x, size, stride, padding=0):
    around = ((0, 0), (padding, padding), (padding, padding), (0, 0))
    return lax.reduce_window(x, 0.0, lax.add, (1, size, size, 1), (1, stride, stride, 1), around) / size**2


def layer_norm(w, x):
    centred = x - x.mean(-1, keepdims=True)
    normal = centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return normal * w.take("scale", x.shape[-1]) + w.take("shift", x.shape[-1])


def batch_norm(w, x):
    centred = x - x.mean((0, 1, 2))
    normal = centred * lax.rsqrt((centred**2).mean((0, 1, 2)) + 1e-5)
    return normal * w.take("scale", x.shape[-1]) + w.take("shift", x.shape[-1])


def attention(w, x, n_heads):
    """x: [b, s, d], without a mask."""
    b, s, d = x.shape
    q, k, v = (dense(w, x, d).reshape(b, s, n_heads, d // n_heads) for _ in range(3))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(d // n_heads)
    return dense(w, jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), v).reshape(b, s, d), d)


def embedding(w, indices, n_rows, width):
    return jnp.take(w.take("table", n_rows, width), indices, axis=0, mode="clip")


def cross_entropy(logits, labels):
    """logits: [b, classes], labels: integers [b]."""
    return -(jax.nn.one_hot(labels, logits.shape[-1]) * jax.nn.log_softmax(logits)).sum(-1).mean()


def squared_error(x, y):
    return ((x - y) ** 2).mean()


def mlp(w, s, x1, x2, labels):
    for layer in range(s.layers):
        x1, x2 = dense(w, x1, s.width), dense(w, x2, s.width)
        if layer + 1 < s.layers:
            x1, x2 = jax.nn.relu(x1), jax.nn.relu(x2)
    return cross_entropy(x1 + x2, labels)


def candle(w, s, *inputs):
    """The first inputs, of width 1, go to the concatenation as they are, each of the others by a tower of its own."""
    *features, target = inputs
    encoded = []
    for x in features:
        if x.shape[-1] > 1:
            for _ in range(s.tower_layers):
                x = jax.nn.relu(dense(w, x, s.width))
        encoded.append(x)
    x = jnp.concatenate(encoded, axis=-1)
    for _ in range(s.layers):
        x = jax.nn.relu(dense(w, x, s.width))
    return squared_error(dense(w, x, 1), target)


def dlrm(w, s, *inputs):
    *indices, x, target = inputs
    embedded = [embedding(w, i, s.rows, s.embedding) for i in indices]
    for _ in range(s.bottom_layers):
        x = jax.nn.relu(dense(w, x, s.width))
    x = jnp.concatenate([*embedded, x], axis=-1)
    for _ in range(s.top_layers - 1):
        x = jax.nn.relu(dense(w, x, s.width))
    return squared_error(jax.nn.sigmoid(dense(w, x, s.width)), target)


def xdl(w, s, *inputs):
    *indices, target = inputs
    x = jnp.concatenate([embedding(w, i, s.rows, s.embedding) for i in indices], axis=-1)
    for _ in range(2):
        x = jax.nn.relu(dense(w, x, s.width))
    return squared_error(jax.nn.sigmoid(dense(w, x, 2)), target)


def resnext(w, s, images, labels):
    relu = jax.nn.relu
    x = max_pool(relu(conv(w, images, s.stem, 7, 2, 3)), 3, 2, 1)
    for stage, (channels, n_blocks) in enumerate(s.stages):
        for block in range(n_blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            y = relu(conv(w, x, channels, 1))
            y = relu(conv(w, y, channels, 3, stride, 1, s.groups))
            y = conv(w, y, 2 * channels, 1)
            if s.projections and (stride > 1 or x.shape[-1] != 2 * channels):
                y = relu(relu(conv(w, x, 2 * channels, 1, stride)) + y)
            x = y
    x = mean_pool(relu(x), x.shape[1], 1)
    return cross_entropy(dense(w, x.reshape(x.shape[0], -1), s.classes), labels)


def inception(w, s, images, labels):
    """Channels are those of Inception-v3 divided by `s.divisor`."""

    def chain(x, *convs, relu=False):
        for channels, size, *rest in convs:
            x = conv(w, x, channels // s.divisor, size, *rest)
            x = jax.nn.relu(x) if relu else x
        return x

    cat = lambda *parts: jnp.concatenate(parts, axis=-1)
    row, column = lambda n: (n, (1, 7), 1, (0, 3)), lambda n: (n, (7, 1), 1, (3, 0))

    def a(x, pooled):
        return cat(
            chain(x, (64, 1), relu=True), chain(x, (48, 1), (64, 5, 1, 2), relu=True),
            chain(x, (64, 1), (96, 3, 1, 1), (96, 3, 1, 1), relu=True), chain(mean_pool(x, 3, 1, 1), (pooled, 1), relu=True),
        )  # fmt: skip

    def b(x):
        return cat(chain(x, (384, 3, 2)), chain(x, (64, 1), (96, 3, 1, 1), (96, 3, 2)), max_pool(x, 3, 2))

    def c(x, n):
        return cat(
            chain(x, (192, 1)), chain(x, (n, 1), row(n), column(192)),
            chain(x, (n, 1), column(n), row(n), column(n), row(192)), chain(mean_pool(x, 3, 1, 1), (192, 1)),
        )  # fmt: skip

    def d(x):
        second = chain(x, (192, 1), row(192), column(192), (192, 3, 2))
        return cat(chain(x, (192, 1), (320, 3, 2)), second, max_pool(x, 3, 2))

    def e(x):
        both = lambda x: (chain(x, (384, (1, 3), 1, (0, 1))), chain(x, (384, (3, 1), 1, (1, 0))))
        first, pooled = chain(x, (320, 1)), chain(mean_pool(x, 3, 1, 1), (192, 1))
        return cat(first, *both(chain(x, (384, 1))), *both(chain(x, (448, 1), (384, 3, 1, 1))), pooled)

    x = max_pool(chain(images, (32, 3, 2), (32, 3), (64, 3, 1, 1), relu=True), 3, 2)
    x = max_pool(chain(x, (80, 1), (192, 3, 1, 1), relu=True), 3, 2)
    for pooled in (32, 64, 64):
        x = a(x, pooled)
    x = b(x)
    for n in (128, 160, 160, 192):
        x = c(x, n)
    x = e(e(d(x)))
    x = mean_pool(x, x.shape[1], 1)
    return cross_entropy(dense(w, x.reshape(x.shape[0], -1), s.classes), labels)


def bert_ae(w, s, x, target):
    """The artifact's Transformer: neither residuals nor norms."""
    for _ in range(s.layers):
        x = attention(w, x, s.heads)
        x = dense(w, jax.nn.relu(dense(w, x, s.width)), s.width)
    return squared_error(dense(w, x, 1), target)


def bert(w, s, x, target):
    for _ in range(s.layers):
        x = layer_norm(w, x + attention(w, x, s.heads))
        hidden = jax.nn.gelu(dense(w, x, 4 * s.width, bias=True))
        x = layer_norm(w, x + dense(w, hidden, s.width, bias=True))
    return squared_error(dense(w, x, 1), target)


def moe(w, s, x, target):
    """Every token through every expert, weighted by a softmax: the experts are a loop of Python."""
    for _ in range(s.layers):
        gate = jax.nn.softmax(dense(w, x, s.experts))
        y = 0.0
        for e in range(s.experts):
            y = y + gate[:, e : e + 1] * dense(w, jax.nn.gelu(dense(w, x, s.hidden)), s.width)
        x = x + y
    return squared_error(dense(w, x, 1), target)


def ncf(w, s, users, items, clicked):
    """Neural collaborative filtering (He et al., 2017): a product of embeddings beside a perceptron over other embeddings."""
    product = embedding(w, users, s.users, s.width) * embedding(w, items, s.items, s.width)
    x = jnp.concatenate([embedding(w, users, s.users, s.width), embedding(w, items, s.items, s.width)], axis=-1)
    for width in (2 * s.width, s.width):
        x = jax.nn.relu(dense(w, x, width, bias=True))
    logits = dense(w, jnp.concatenate([product, x], axis=-1), 1, bias=True)[:, 0]
    return (jax.nn.softplus(logits) - clicked * logits).mean()


def conv_net(w, s, images, labels):
    x = conv(w, images, s.stem, 7, 2, 3) + w.take("bias", s.stem)
    x = max_pool(jax.nn.relu(x), 3, 2, 1)
    x = jax.nn.relu(batch_norm(w, conv(w, x, s.channels, 3, 1, 1)))
    for _ in range(2):
        x = jax.nn.relu(x + batch_norm(w, conv(w, x, s.channels, 3, 1, 1)))
    x = conv(w, x, s.features, 1).mean((1, 2))
    return cross_entropy(dense(w, x, s.classes, bias=True), labels)


def perceptron(w, s, x, labels):
    for _ in range(s.layers - 1):
        x = jax.nn.relu(dense(w, x, s.width, bias=True))
    return cross_entropy(dense(w, x, s.classes, bias=True), labels)
