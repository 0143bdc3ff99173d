//! The seven models of Unity's evaluation as layers, with the weights of `xtask/jax/search_models.py` in the same order.

use super::layers::LayerGraph;

/// A model by its name there, for so many GPUs; `None` where no model has the name.
pub fn model(name: &str, n_gpus: i64) -> Option<LayerGraph> {
    let mut graph = LayerGraph::default();
    match name {
        "mlp" => mlp(&mut graph, 256 * n_gpus),
        "candle" => candle(&mut graph, 256 * n_gpus),
        "dlrm" => dlrm(&mut graph, 1024 * n_gpus),
        "xdl" => xdl(&mut graph, 1024 * n_gpus),
        "resnext" => resnext(&mut graph, 64 * n_gpus),
        "inception" => inception(&mut graph, 64 * n_gpus),
        "bert-ae" => bert_ae(&mut graph, 4 * n_gpus),
        "bert-large" => bert_large(&mut graph, 4 * n_gpus),
        _ => return None,
    }
    Some(graph)
}

fn mlp(graph: &mut LayerGraph, batch: i64) {
    let mut chains = [graph.input(&[batch, 1024]), graph.input(&[batch, 1024])];
    for layer in 0..8 {
        chains = chains.map(|x| graph.linear(x, 8192, false));
        if layer < 7 {
            chains = chains.map(|x| graph.relu(x));
        }
    }
    let sum = graph.elementwise(&chains);
    graph.softmax(sum);
}

fn candle(graph: &mut LayerGraph, batch: i64) {
    let mut encoded = Vec::new();
    for width in [1, 1, 942, 5270, 2048, 5270, 2048] {
        let mut x = graph.input(&[batch, width]);
        for _ in 0..if width > 1 { 8 } else { 0 } {
            x = graph.linear(x, 4192, false);
            x = graph.relu(x);
        }
        encoded.push(x);
    }
    let mut x = graph.concat(&encoded);
    for _ in 0..4 {
        x = graph.linear(x, 4192, false);
        x = graph.relu(x);
    }
    graph.linear(x, 1, false);
}

fn dlrm(graph: &mut LayerGraph, batch: i64) {
    let indices: Vec<usize> = (0..8).map(|_| graph.input(&[batch])).collect();
    let mut parts: Vec<usize> = indices.into_iter().map(|x| graph.embedding(x, 1_000_000, 256)).collect();
    let mut x = graph.input(&[batch, 1024]);
    for _ in 0..8 {
        x = graph.linear(x, 1024, false);
        x = graph.relu(x);
    }
    parts.push(x);
    x = graph.concat(&parts);
    for _ in 0..3 {
        x = graph.linear(x, 1024, false);
        x = graph.relu(x);
    }
    x = graph.linear(x, 1024, false);
    graph.elementwise(&[x]);
}

fn xdl(graph: &mut LayerGraph, batch: i64) {
    let indices: Vec<usize> = (0..4).map(|_| graph.input(&[batch])).collect();
    let tables: Vec<usize> = indices.into_iter().map(|x| graph.embedding(x, 1_000_000, 64)).collect();
    let mut x = graph.concat(&tables);
    for _ in 0..2 {
        x = graph.linear(x, 256, false);
        x = graph.relu(x);
    }
    x = graph.linear(x, 2, false);
    graph.elementwise(&[x]);
}

fn resnext(graph: &mut LayerGraph, batch: i64) {
    let mut x = graph.input(&[batch, 224, 224, 3]);
    x = graph.conv(x, 64, [7, 7], 2, [3, 3], 1);
    x = graph.relu(x);
    x = graph.pool(x, 3, 2, 1);
    for (stage, (channels, n_blocks)) in [(128, 3), (256, 4), (512, 6), (1024, 3)].into_iter().enumerate() {
        for block in 0..n_blocks {
            let stride = if stage > 0 && block == 0 { 2 } else { 1 };
            x = graph.conv(x, channels, [1, 1], 1, [0, 0], 1);
            x = graph.relu(x);
            x = graph.conv(x, channels, [3, 3], stride, [1, 1], 32);
            x = graph.relu(x);
            x = graph.conv(x, 2 * channels, [1, 1], 1, [0, 0], 1);
        }
    }
    x = graph.relu(x);
    x = graph.pool(x, 7, 1, 0);
    x = graph.flat(x);
    x = graph.linear(x, 1000, false);
    graph.softmax(x);
}

/// A chain of convolutions: channels, window, stride, padding.
type Chain<'a> = &'a [(i64, [i64; 2], i64, [i64; 2])];

fn chain(graph: &mut LayerGraph, mut x: usize, convs: Chain<'_>, has_relu: bool) -> usize {
    for &(channels, window, stride, padding) in convs {
        x = graph.conv(x, channels, window, stride, padding, 1);
        if has_relu {
            x = graph.relu(x);
        }
    }
    x
}

const fn one(channels: i64) -> (i64, [i64; 2], i64, [i64; 2]) {
    (channels, [1, 1], 1, [0, 0])
}

const fn row(channels: i64) -> (i64, [i64; 2], i64, [i64; 2]) {
    (channels, [1, 7], 1, [0, 3])
}

const fn column(channels: i64) -> (i64, [i64; 2], i64, [i64; 2]) {
    (channels, [7, 1], 1, [3, 0])
}

const fn three(channels: i64) -> (i64, [i64; 2], i64, [i64; 2]) {
    (channels, [3, 3], 1, [1, 1])
}

const fn halving(channels: i64) -> (i64, [i64; 2], i64, [i64; 2]) {
    (channels, [3, 3], 2, [0, 0])
}

fn inception(graph: &mut LayerGraph, batch: i64) {
    let mut x = graph.input(&[batch, 299, 299, 3]);
    x = chain(graph, x, &[halving(32), (32, [3, 3], 1, [0, 0]), three(64)], true);
    x = graph.pool(x, 3, 2, 0);
    x = chain(graph, x, &[one(80), (192, [3, 3], 1, [0, 0])], true);
    x = graph.pool(x, 3, 2, 0);
    for pooled in [32, 64, 64] {
        x = inception_a(graph, x, pooled);
    }
    let parts = [
        chain(graph, x, &[halving(384)], false),
        chain(graph, x, &[one(64), three(96), halving(96)], false),
        graph.pool(x, 3, 2, 0),
    ];
    x = graph.concat(&parts);
    for n in [128, 160, 160, 192] {
        x = inception_c(graph, x, n);
    }
    let second = chain(graph, x, &[one(192), row(192), column(192), halving(192)], false);
    let parts = [chain(graph, x, &[one(192), halving(320)], false), second, graph.pool(x, 3, 2, 0)];
    x = graph.concat(&parts);
    for _ in 0..2 {
        x = inception_e(graph, x);
    }
    x = graph.pool(x, 8, 1, 0);
    x = graph.flat(x);
    x = graph.linear(x, 10, false);
    graph.softmax(x);
}

fn inception_a(graph: &mut LayerGraph, x: usize, pooled: i64) -> usize {
    let parts = [
        chain(graph, x, &[one(64)], true),
        chain(graph, x, &[one(48), (64, [5, 5], 1, [2, 2])], true),
        chain(graph, x, &[one(64), three(96), three(96)], true),
    ];
    let mean = graph.pool(x, 3, 1, 1);
    let last = chain(graph, mean, &[one(pooled)], true);
    graph.concat(&[parts[0], parts[1], parts[2], last])
}

fn inception_c(graph: &mut LayerGraph, x: usize, n: i64) -> usize {
    let parts = [
        chain(graph, x, &[one(192)], false),
        chain(graph, x, &[one(n), row(n), column(192)], false),
        chain(graph, x, &[one(n), column(n), row(n), column(n), row(192)], false),
    ];
    let mean = graph.pool(x, 3, 1, 1);
    let last = chain(graph, mean, &[one(192)], false);
    graph.concat(&[parts[0], parts[1], parts[2], last])
}

fn inception_e(graph: &mut LayerGraph, x: usize) -> usize {
    let first = chain(graph, x, &[one(320)], false);
    let mean = graph.pool(x, 3, 1, 1);
    let pooled = chain(graph, mean, &[one(192)], false);
    let mut both = |convs: Chain<'_>| {
        let x = chain(graph, x, convs, false);
        let flat = chain(graph, x, &[(384, [1, 3], 1, [0, 1])], false);
        [flat, chain(graph, x, &[(384, [3, 1], 1, [1, 0])], false)]
    };
    let (second, third) = (both(&[one(384)]), both(&[one(448), three(384)]));
    graph.concat(&[first, second[0], second[1], third[0], third[1], pooled])
}

fn bert_ae(graph: &mut LayerGraph, batch: i64) {
    let mut x = graph.input(&[batch, 512, 1024]);
    for _ in 0..12 {
        x = graph.attention(x, 16);
        x = graph.linear(x, 1024, false);
        x = graph.relu(x);
        x = graph.linear(x, 1024, false);
    }
    graph.linear(x, 1, false);
}

fn bert_large(graph: &mut LayerGraph, batch: i64) {
    let mut x = graph.input(&[batch, 512, 1024]);
    for _ in 0..24 {
        let attended = graph.attention(x, 16);
        x = graph.elementwise(&[x, attended]);
        x = graph.norm(x);
        let mut hidden = graph.linear(x, 4096, true);
        hidden = graph.elementwise(&[hidden]);
        hidden = graph.linear(hidden, 1024, true);
        x = graph.elementwise(&[x, hidden]);
        x = graph.norm(x);
    }
    graph.linear(x, 1, false);
}
