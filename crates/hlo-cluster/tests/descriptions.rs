//! Every shipped description can be used; wrong ones say where, what was expected and what was found.

use hlo_cluster::{Cluster, ClusterError};

fn error(outcome: Result<Cluster, ClusterError>) -> String {
    outcome.err().map_or("no error".into(), |e| e.to_string())
}

#[test]
fn shipped_descriptions_have_their_sizes() {
    let sizes: Vec<(&str, u32)> =
        Cluster::shipped().map(|name| (name, Cluster::from_arg(name).map_or(0, |c| c.n_devices()))).collect();
    let expected = [
        ("dgx-a100", 160),
        ("dgx-b200", 256),
        ("dgx-h100", 256),
        ("ethernet", 16),
        ("p2-a100", 64),
        ("p2-v100", 32),
        ("tpuv3", 2048),
        ("tpuv3-slice", 32),
    ];
    assert_eq!(sizes, expected);
    assert_eq!(Cluster::from_arg("p2-a100:2").map(|c| c.n_devices()), Ok(32));
    assert_eq!(Cluster::from_arg("tpuv3-slice:8x8").map(|c| c.n_devices()), Ok(128));
}

#[test]
fn every_number_of_a_shipped_description_has_a_source() {
    for folder in ["clusters", "profiles"] {
        let path = format!("{}/{folder}", env!("CARGO_MANIFEST_DIR"));
        for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
            let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
            assert!(!text.is_empty());
            for line in text.lines().filter(|l| !l.starts_with('#')) {
                let (value, comment) = line.split_once(" # ").unwrap_or((line, ""));
                let number = value.split_once('=').is_some_and(|(_, v)| v.chars().any(|c| c.is_ascii_digit()));
                let is_text = value.contains('"');
                assert!(!number || is_text || comment.len() > 8, "{:?}: {line}", entry.path());
            }
        }
    }
}

#[test]
fn inline_hierarchies_have_defaults() {
    let cluster = Cluster::from_arg("[(node,3), (gpu , 4+4+2, 100, 2)]").expect("a cluster");
    assert_eq!(cluster.n_devices(), 10);
    assert_eq!(cluster.hierarchy(), None);
    let (node, gpu) = (&cluster.levels()[0], &cluster.levels()[1]);
    assert_eq!((node.bytes_per_s, gpu.bytes_per_s, gpu.latency_s), (8e9, 100e9, 2e-6));
    let cluster = Cluster::from_arg("[(node,2),(gpu,4)]").expect("a cluster");
    assert_eq!(cluster.hierarchy(), Some(vec![2, 4]));
    assert_eq!(cluster.levels()[1].bytes_per_s, 270e9);
}

#[test]
fn wrong_inline_hierarchies_say_where() {
    let cases = [
        ("[(node,2),(gpu)]", "cluster, line 1, column 15: expected `,`, found `)]`"),
        ("[(node,2),(gpu,x)]", "cluster, line 1, column 16: expected a count, found `x)]`"),
        ("[(4,2)]", "cluster, line 1, column 3: expected a name, found `4,2)]`"),
        ("[(node,2,fast)]", "cluster, line 1, column 10: expected a number, found `fast)]`"),
        ("[(node,99999999999)]", "cluster, line 1, column 8: expected a count below 2³², found `99999999999`"),
        ("[(node,0)]", "level 1 (node): count: expected at least 1, found 0"),
        (
            "[(node,2),(gpu,4+4+4)]",
            "level 2 (gpu): count: expected one number for each of 2 entities of the level outside, found 3",
        ),
        ("[(a,4000000),(b,4000000)]", "level 2 (b): count: expected at most 4194304 entities, found 16000000000000"),
        ("[(node,2,0)]", "level 1 (node): GB/s: expected 1e-9 to 1e9, found 0e0"),
        ("[(node,2)", "cluster, line 1, column 10: expected `]` or `,`, found the end"),
    ];
    for (text, message) in cases {
        assert_eq!(error(Cluster::from_arg(text)), message, "{text}");
    }
    let unknown = error(Cluster::from_arg("p2-a10"));
    assert!(unknown.ends_with("found `p2-a10` (did you mean `p2-a100`?)"), "{unknown}");
}

#[test]
fn the_text_of_a_file_is_an_argument() {
    let text = include_str!("../clusters/p2-a100.toml");
    assert_eq!(Cluster::from_arg(text), Cluster::from_toml(text));
    assert!(Cluster::from_arg("name=\"a\"\nlevels=3\n").is_err());
}

#[test]
fn wrong_toml_says_where() {
    let level = "[[level]]\nname = \"x\"\ncount = 4\ngbytes_per_s = 1\n";
    let cases = [
        ("name = \"a\"\n".to_string(), "expected a field `level`, found none"),
        (format!("name = \"a\"\n{level}speed = 3\n"), "line 6, column 1: expected one of `name`, `count`,"),
        (
            format!("name = \"a\"\n{level}network = \"torus\"\n"),
            "level `x`: dims: expected dims exactly on a torus or a mesh",
        ),
        (
            format!("name = \"a\"\n{level}network = \"torus\"\ndims = [3, 2]\n"),
            "expected extents whose product is 4, found [3, 2]",
        ),
        (
            format!("name = \"a\"\n{level}shared_by = 0\n"),
            "level 1 (x): shared_by: expected 1 to 4, the entities of the level, found 0",
        ),
        (format!("name = \"a\"\n{level}latency_us = -1\n"), "level 1 (x): µs: expected zero to 1e9, found -1e0"),
        (level.replace("= 1\n", "= \"1\"\n").replacen("", "name = \"a\"\n", 1), "expected f64, found string \"1\""),
        (
            format!("name = \"a\"\n{level}count = 4\n"),
            "line 6, column 1: expected every key once, found a second time `count",
        ),
    ];
    for (text, message) in cases {
        let found = error(Cluster::from_toml(&text));
        assert!(found.contains(message), "{found}");
    }
}
