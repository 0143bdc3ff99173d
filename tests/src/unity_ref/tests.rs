use super::costs::UnityMachine;
use super::layers::{Degrees, LayerGraph, MOST_DIMS, WHOLE, n_tasks};
use super::queue::{Budget, best};
use super::split::{SplitShapes, UnityOptions, search};
use super::substitutions::Substitutions;
use super::views::{ParallelGraph, Views};
use super::{Faults, IMPOSSIBLE, Picoseconds, model};
use hlo_mesh::Machine;

const NODES: &str = "name = \"nodes\"\ndevice = \"v100\"\nlaunch_us = 0\n[[level]]\nname = \"node\"\ncount = 2\ngbytes_per_s = 12.5\nlatency_us = 2\n\
                     [[level]]\nname = \"gpu\"\ncount = 3\ngbytes_per_s = 50\nlatency_us = 2\n";

fn machine() -> UnityMachine {
    let machine = Machine::parse(NODES, 6).expect("a machine");
    UnityMachine::new(&machine, 6).expect("nodes of GPUs")
}

fn serial(graph: &LayerGraph) -> ParallelGraph {
    ParallelGraph { layers: graph.layers.clone(), degrees: vec![WHOLE; graph.layers.len()] }
}

/// A chain, two branches, a residual, and a concatenation, with sizes by a seed.
fn small_graph(seed: u64) -> LayerGraph {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut draw = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let batch = [6, 12, 600, 6000][draw(4) as usize];
    let width = [6, 96, 1536, 12288][draw(4) as usize];
    let mut graph = LayerGraph::default();
    let x = graph.input(&[batch, width]);
    match draw(5) {
        0 => {
            let x = graph.linear(x, 6 * width, false);
            let x = graph.relu(x);
            graph.linear(x, width, false);
        }
        1 => {
            let (one, other) = (graph.linear(x, width, false), graph.linear(x, width, false));
            let sum = graph.elementwise(&[one, other]);
            graph.softmax(sum);
        }
        2 => {
            let y = graph.linear(x, width, true);
            let x = graph.elementwise(&[x, y]);
            graph.norm(x);
        }
        3 => {
            let y = graph.input(&[batch, width]);
            let both = graph.concat(&[x, y]);
            graph.linear(both, width, false);
        }
        _ => {
            let one = graph.linear(x, width, false);
            let other = graph.relu(one);
            let y = graph.linear(one, width, false);
            graph.elementwise(&[other, y]);
        }
    }
    graph
}

/// The least cost of all degrees of all layers, with layers as they are, fused, or with concatenations split: each graph is priced without
/// anything that is known of another one.
fn brute_force(graph: &LayerGraph, machine: &UnityMachine) -> Picoseconds {
    let mut least = IMPOSSIBLE;
    let mut rules = Substitutions::new(machine.degrees(), 100, true);
    // Rules that change layers match where degrees agree, so each form of the layers is met with none cut.
    let mut forms = vec![serial(graph)];
    let mut number = 0;
    while number < forms.len() {
        let form = forms[number].clone();
        let is_whole = |graph: &ParallelGraph| graph.degrees.iter().all(|degrees| *degrees == WHOLE);
        for other in rules.candidates(&form).into_iter().filter(is_whole) {
            let uids = |graph: &ParallelGraph| graph.layers.iter().map(|layer| layer.uid).collect::<Vec<_>>();
            if !forms.iter().any(|known| uids(known) == uids(&other)) {
                forms.push(other);
            }
        }
        number += 1;
    }
    for form in forms {
        let choices: Vec<Vec<Degrees>> = form.layers.iter().map(|layer| all_degrees(layer, machine)).collect();
        let mut at = vec![0; choices.len()];
        loop {
            let degrees = at.iter().zip(&choices).map(|(&k, of_layer)| of_layer[k]).collect();
            let one = ParallelGraph { layers: form.layers.clone(), degrees };
            least = least.min(Views::new(machine, Faults::default()).cost(&one).0);
            let Some(digit) = (0..at.len()).find(|&k| at[k] + 1 < choices[k].len()) else { break };
            at[..digit].fill(0);
            at[digit] += 1;
        }
    }
    least
}

fn all_degrees(layer: &super::Layer, machine: &UnityMachine) -> Vec<Degrees> {
    let mut all = vec![WHOLE];
    for dim in (0..=MOST_DIMS).filter(|&dim| layer.can_cut(dim)) {
        let further = |one: &Degrees| {
            let mut one = *one;
            machine.degrees().into_iter().map(move |degree| {
                one[dim] = degree;
                one
            })
        };
        all = all.iter().flat_map(further).collect();
    }
    let valid = machine.degrees();
    all.retain(|one| layer.takes(one) && valid.iter().any(|&n| u32::from(n) == n_tasks(one)));
    all
}

#[test]
fn without_limits_the_queue_finds_the_best_of_all_graphs() {
    let machine = machine();
    let budget = Budget { alpha: f64::INFINITY, n_pops: u64::MAX, most_layers: usize::MAX };
    for seed in 1..=12 {
        let graph = small_graph(seed);
        let mut views = Views::new(&machine, Faults::default());
        let mut rules = Substitutions::new(machine.degrees(), 100, true);
        let (found, ..) = best(&mut views, &mut rules, serial(&graph), budget);
        assert!(found < IMPOSSIBLE);
        assert_eq!(found, brute_force(&graph, &machine), "seed {seed}: {:?}", graph.layers);
    }
}

/// A chain on one node: each layer and each edge, one after the other.
#[test]
fn a_chain_takes_the_sum_of_its_layers_and_edges() {
    let machine = machine();
    let mut graph = LayerGraph::default();
    let x = graph.input(&[600, 96]);
    let x = graph.linear(x, 96, false);
    let x = graph.relu(x);
    graph.linear(x, 96, false);
    let mut parallel = serial(&graph);
    parallel.degrees[1] = [3, 1, 1, 1, 1];
    parallel.degrees[2] = [3, 1, 1, 1, 1];
    parallel.degrees[3] = [1, 1, 1, 1, 3];
    let block = machine.whole().first(3).expect("three GPUs of a node");
    let layer = |k: usize| machine.layer(&parallel.layers[k], &parallel.degrees[k], block);
    // From rows to columns: a Combine and a Partition, whose messages are a third of the array, there and back.
    let moved = 2.0 * 2.0 * (600.0 * 96.0 * 4.0 / 3.0) / 50e9;
    let expected = layer(1) + layer(2) + layer(3) + (moved * 1e12_f64).round() as Picoseconds;
    assert_eq!(Views::new(&machine, Faults::default()).cost(&parallel), (expected, 0));
}

/// Two products of which neither needs the other: on one node each, they take the time of one, and what crosses to the other node.
#[test]
fn branches_run_beside_each_other_where_it_pays() {
    let machine = machine();
    let mut graph = LayerGraph::default();
    let inputs = [graph.input(&[600, 12288]), graph.input(&[600, 12288])];
    let products = inputs.map(|x| graph.linear(x, 12288, false));
    let narrow = products.map(|x| graph.linear(x, 6, false));
    graph.elementwise(&narrow);
    let mut parallel = serial(&graph);
    for (layer, degrees) in parallel.layers.iter().zip(&mut parallel.degrees) {
        if !layer.operands.is_empty() {
            degrees[0] = 3;
        }
    }
    let (time, n_beside) = Views::new(&machine, Faults::default()).cost(&parallel);
    let node = machine.whole().first(3).expect("three GPUs of a node");
    let in_turn: Picoseconds = (2..7).map(|k| machine.layer(&parallel.layers[k], &parallel.degrees[k], node)).sum();
    assert_eq!(n_beside, 1);
    assert!(time < in_turn * 6 / 10, "{time} of {in_turn}");
}

#[test]
fn models_have_the_weights_of_the_artifact() {
    let expected = [
        ("mlp", 16, 956_301_312.0),
        ("candle", 45, 820_948_704.0),
        ("dlrm", 20, 2_062_680_064.0),
        ("xdl", 7, 256_131_584.0),
        ("resnext", 50, 22_190_784.0),
        ("inception", 95, 21_771_616.0),
        ("bert-ae", 73, 75_498_496.0),
        ("bert-large", 289, 302_212_096.0),
    ];
    for (name, n_weights, n_elems) in expected {
        let graph = model(name, 6).expect("a model of Unity");
        assert_eq!(graph.weights(), (n_weights, n_elems), "{name}");
    }
    assert!(model("gpt", 6).is_none());
}

/// As the paper says of convolutional networks: all convolutions are cut along the batch.
#[test]
#[ignore = "takes long: .ci/nightly runs it"]
fn resnext_on_a_node_is_data_parallel() {
    let machine = Machine::parse(
        "name = \"node\"\ndevice = \"v100\"\nlaunch_us = 0\n[[level]]\nname = \"gpu\"\ncount = 6\ngbytes_per_s = 50\nlatency_us = 2\n",
        6,
    );
    let machine = UnityMachine::new(&machine.expect("a machine"), 6).expect("a node of GPUs");
    let graph = model("resnext", 6).expect("a model of Unity");
    let found = search(&graph, &machine, UnityOptions::default());
    let convolutions: Vec<_> = found.results.iter().filter(|(name, _)| name.starts_with("conv")).collect();
    assert!(convolutions.len() >= 40, "{}", convolutions.len());
    assert!(convolutions.iter().all(|(_, parts)| parts[..] == [6, 1, 1, 1]), "{convolutions:?}");
    assert!(found.counts.n_cache_hits > 0 && found.counts.n_pops > 100);
}

/// Twelve products, split once: in three parts each on six GPUs, unless only powers of two are tried where they are split.
#[test]
fn tensors_at_splits_are_cut_as_substitutions_cut_layers() {
    let machine = machine();
    let mut graph = LayerGraph::default();
    let mut x = graph.input(&[6000, 1536]);
    for _ in 0..12 {
        x = graph.linear(x, 1536, false);
    }
    let [mended, of_artifact] = [SplitShapes::AsSubstitutions, SplitShapes::PowersOfTwo]
        .map(|shapes| search(&graph, &machine, UnityOptions { shapes, ..UnityOptions::default() }));
    assert!(mended.weights.len() == 12 && mended.time < of_artifact.time, "{} {}", mended.time, of_artifact.time);
}

/// What a residual moves is not counted where skip edges are dropped; and a subgraph behind a layer on other devices has another cost.
#[test]
fn faults_of_the_artifact_change_costs() {
    let machine = machine();
    let mut graph = LayerGraph::default();
    let x = graph.input(&[600, 96]);
    let x = graph.linear(x, 96, false);
    let y = graph.linear(x, 96, false);
    graph.elementwise(&[x, y]);
    let mut parallel = serial(&graph);
    parallel.degrees[1][0] = 3;
    parallel.degrees[2][0] = 3;
    let right = Views::new(&machine, Faults::default()).cost(&parallel).0;
    let drops_skip_edges = Faults { drops_skip_edges: true, ..Faults::default() };
    let without = Views::new(&machine, drops_skip_edges).cost(&parallel).0;
    // A Combine, whose messages are a third of the array, there and back.
    let moved = ((2.0 * (600.0 * 96.0 * 4.0 / 3.0) / 50e9) * 1e12_f64).round() as Picoseconds;
    assert_eq!(right - without, moved);

    let mut graph = LayerGraph::default();
    let inputs = [graph.input(&[6000, 12288]), graph.input(&[6000, 12288])];
    let chains = inputs.map(|x| {
        let x = graph.linear(x, 12288, false);
        let three = [0; 3].map(|_| graph.linear(x, 96, false));
        graph.elementwise(&three)
    });
    graph.elementwise(&chains);
    // On two GPUs of a node, or on one of each of two nodes, by what is left to the chain.
    let mut parallel = serial(&graph);
    for (layer, degrees) in parallel.layers.iter().zip(&mut parallel.degrees) {
        if layer.n_summed == 12288 && layer.dims[1] == 12288 {
            degrees[0] = 2;
        }
    }
    let cost = |faults: Faults| {
        let mut views = Views::new(&machine, faults);
        (views.cost(&parallel), views.counts.n_cache_hits)
    };
    let lacks_source = Faults { cache_key_lacks_source: true, ..Faults::default() };
    assert!(cost(lacks_source).1 > cost(Faults::default()).1, "more is found in a cache whose key says less");
}
