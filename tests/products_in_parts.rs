//! `collective-matmul` keeps what random products beside collectives compute, bit for bit on every device.

use crate::lockstep::{keeps_every_bit, small_integers};
use hlo_tests::random_module::Rng;

/// Products when the environment does not say how many.
const N_CASES: u64 = 300;

/// A collective beside a product.
struct RandomProduct {
    text: String,
    n_devices: usize,
    /// The dims of the operands as the devices have them.
    params: [Vec<i64>; 2],
}

fn list(numbers: impl IntoIterator<Item = i64>) -> String {
    numbers.into_iter().map(|n| n.to_string()).collect::<Vec<String>>().join(",")
}

/// Groups of `n` in any order, of all devices.
fn groups(rng: &mut Rng, n_devices: usize, n: usize) -> String {
    let mut devices: Vec<i64> = (0..n_devices as i64).collect();
    (1..n_devices).rev().for_each(|i| devices.swap(i, rng.below(i + 1)));
    let lists: Vec<String> = devices.chunks(n).map(|group| format!("{{{}}}", list(group.iter().copied()))).collect();
    lists.join(",")
}

/// In which of batch, contracted and free dims a dim is, and where: after `n_batch` batch dims come `n` of the list `then`, and those of `last`.
fn place_of(cut: usize, n_batch: usize, [n, then, last]: [usize; 3]) -> (usize, usize) {
    match cut.checked_sub(n_batch) {
        None => (0, cut),
        Some(rest) if rest < n => (then, rest),
        Some(rest) => (last, rest - n),
    }
}

/// Elements are small integers in f32: sums and products are exact in any order.
fn random_product(seed: u64) -> RandomProduct {
    let mut rng = Rng::new(seed ^ 0x0d07_0d07);
    let n_devices = [4, 6, 8][rng.below(3)];
    let sizes: Vec<usize> = (2..=n_devices).filter(|n| n_devices % n == 0).collect();
    let n = sizes[rng.below(sizes.len())];
    let groups = groups(&mut rng, n_devices, n);
    let (header, ids) = match rng.below(2) {
        0 => (format!("replica_count={n_devices}"), format!("replica_groups={{{groups}}}")),
        _ => {
            let ids = format!("channel_id=3, replica_groups={{{groups}}}, use_global_device_ids=true");
            (format!("num_partitions={n_devices}"), ids)
        }
    };
    // Sizes of batch, contracted and free dims; each operand has them in some order.
    let mut dims = |most: usize| (0..rng.below(most + 1)).map(|_| 1 + rng.below(3) as i64).collect::<Vec<i64>>();
    let (batch, mut contracted, mut free) = (dims(2), dims(2), [dims(2), dims(2)]);
    if contracted.is_empty() {
        contracted.push(3);
    }
    free.iter_mut().filter(|free| free.is_empty()).for_each(|free| free.push(2));
    let mut orders: Vec<Vec<usize>> = Vec::new();
    for own in &free {
        let mut order: Vec<usize> = (0..batch.len() + contracted.len() + own.len()).collect();
        (1..order.len()).rev().for_each(|i| order.swap(i, rng.below(i + 1)));
        // Free dims come in their own order in the result.
        let first_free = batch.len() + contracted.len();
        let mut next = first_free..;
        order.iter_mut().filter(|dim| **dim >= first_free).for_each(|dim| *dim = next.next().unwrap_or(first_free));
        orders.push(order);
    }
    let kind = rng.below(3);
    // The cut dim: any dim of an operand for a gather, any dim of the result otherwise. Its whole size is a multiple of `n`.
    let side = rng.below(2);
    let cut = match kind {
        0 => rng.below(orders[side].len()),
        _ => rng.below(batch.len() + free[0].len() + free[1].len()),
    };
    let (n_batch, n_contracted) = (batch.len(), contracted.len());
    let whole = |size: i64| size * n as i64;
    let mut all = [batch.clone(), contracted.clone(), free[0].clone(), free[1].clone()];
    let after = if kind == 0 { [n_contracted, 1, 2 + side] } else { [free[0].len(), 2, 3] };
    let (list_of, at) = place_of(cut, n_batch, after);
    if kind < 2 {
        all[list_of][at] = whole(all[list_of][at]);
    }
    // By place in an operand: which of batch, contracted and free dims stands there.
    let shape = |side: usize| -> Vec<i64> {
        let plain: Vec<i64> = [&all[0][..], &all[1], &all[2 + side]].concat();
        orders[side].iter().map(|&from| plain[from]).collect()
    };
    let places = |side: usize, from: usize, n: usize| -> String {
        list((from..from + n).map(|dim| orders[side].iter().position(|&d| d == dim).expect("a dim") as i64))
    };
    let operands = [shape(0), shape(1)];
    let result: Vec<i64> = [&all[0][..], &all[2], &all[3]].concat();
    let mut params = operands.clone();
    let gathered = orders[side].iter().position(|&d| d == cut).unwrap_or(0);
    if kind == 0 {
        params[side][gathered] /= n as i64;
    }
    let dot = format!(
        "dot(%x0, %x1), lhs_batch_dims={{{}}}, lhs_contracting_dims={{{}}}, rhs_batch_dims={{{}}}, rhs_contracting_dims={{{}}}",
        places(0, 0, n_batch),
        places(0, n_batch, n_contracted),
        places(1, 0, n_batch),
        places(1, n_batch, n_contracted)
    );
    let array = |dims: &[i64]| format!("f32[{}]", list(dims.iter().copied()));
    let mut lines = Vec::new();
    for (k, own) in params.iter().enumerate() {
        let name = if kind == 0 && k == side { format!("own{k}") } else { format!("x{k}") };
        lines.push(format!("%{name} = {} parameter({k})", array(own)));
        if kind == 0 && k == side {
            lines
                .push(format!("%x{k} = {} all-gather(%{name}), {ids}, dimensions={{{gathered}}}", array(&operands[k])));
        }
    }
    lines.push(format!("%y = {} {dot}", array(&result)));
    let mut out = vec![("y", result.clone())];
    let converts = rng.below(3) == 0;
    let summand = if converts && kind > 0 { "%z" } else { "%y" };
    if converts && kind > 0 {
        lines.push(format!("%w = f64[{}] convert(%y)", list(result.iter().copied())));
        lines.push(format!("%z = {} convert(%w)", array(&result)));
    }
    // With dims of size 1 before and behind; what is summed perhaps flat.
    let mut cut = cut;
    let mut result = result;
    let reshapes = kind > 0 && rng.below(3) == 0;
    if reshapes {
        cut += 1;
        let padded: Vec<i64> = [&[1], &result[..], &[1]].concat();
        result = if kind == 2 && rng.below(2) == 0 { vec![result.iter().product()] } else { padded };
        lines.push(format!("%r = {} reshape({summand})", array(&result)));
    }
    let summand = if reshapes { "%r" } else { summand };
    if kind == 1 {
        let mut part = result.clone();
        part[cut] /= n as i64;
        lines.push(format!(
            "%s = {} reduce-scatter({summand}), {ids}, dimensions={{{cut}}}, to_apply=%add",
            array(&part)
        ));
        out = vec![("s", part)];
    } else if kind == 2 {
        lines.push(format!("%s = {} all-reduce({summand}), {ids}, to_apply=%add", array(&result)));
        out = vec![("s", result)];
    } else if rng.below(3) == 0 {
        // The gathered array is read elsewhere too.
        lines.push(format!("%n = {} negate(%x{side})", array(&operands[side])));
        out.push(("n", operands[side].clone()));
    }
    let shapes: Vec<String> = out.iter().map(|(_, dims)| array(dims)).collect();
    let names: Vec<String> = out.iter().map(|(name, _)| format!("%{name}")).collect();
    lines.push(format!("ROOT %out = ({}) tuple({})", shapes.join(", "), names.join(", ")));
    let add = "%add {\n  %a = f32[] parameter(0)\n  %b = f32[] parameter(1)\n  ROOT %c = f32[] add(%a, %b)\n}";
    let text = format!("HloModule product, {header}\n\n{add}\n\nENTRY %main {{\n  {}\n}}\n", lines.join("\n  "));
    RandomProduct { text, n_devices, params }
}

/// Whether the collective was taken apart.
fn check(seed: u64) -> bool {
    let random = random_product(seed);
    let inputs = small_integers(seed, random.n_devices, &random.params, 3);
    let once = keeps_every_bit(seed, &random.text, &inputs, "collective-matmul{profit=always}");
    once.reports[0].stats["collective-matmul.collectives-taken-apart"] == 1
}

#[test]
fn random_products_beside_collectives_compute_the_same() {
    let n_cases = std::env::var("HLO_PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(N_CASES);
    let n_changed = (0..n_cases).filter(|&seed| check(seed)).count() as u64;
    println!("of {n_cases} products {n_changed} are computed in parts");
    assert!(n_changed * 10 > n_cases * 9, "only {n_changed} of {n_cases}");
}
