//! A kernel that writes outside its array is caught when kernels are compiled with sanitizers.

use hlo_gpu::plan::{Access, Kernel};
use hlo_run::{Block, Library};
use std::process::Command;

/// Set in the process that runs with the sanitizer's runtime: how many elements the kernel writes.
const WRITTEN: &str = "HLO_GPU_TEST_WRITTEN";
const SANITIZERS: &str = "HLO_GPU_SANITIZE";

/// Writes so many elements of an array of five, in a block of 32 threads that meet at a barrier if `is_cooperative`.
fn overrun(n_written: u32, is_cooperative: bool) -> Kernel {
    let barrier = if is_cooperative { "__syncthreads();" } else { "" };
    let source = format!(
        "extern \"C\" __global__ void overrun{is_cooperative}(float* r0) {{\n    {barrier}\n    if (threadIdx.x < {n_written}) r0[threadIdx.x] = 1.0f;\n}}\n"
    );
    let arguments = vec![Access::Write];
    Kernel {
        name: format!("overrun{is_cooperative}"),
        source,
        grid: 1,
        block: 32,
        shared_bytes: 0,
        is_cooperative,
        arguments,
    }
}

#[test]
fn writes_so_many_elements() {
    let n_written = std::env::var(WRITTEN).ok().and_then(|n| n.parse().ok()).unwrap_or(5);
    let kernels = [overrun(n_written, true), overrun(n_written, false)];
    let sanitizers = std::env::var(SANITIZERS).ok();
    let library = Library::with_sanitizers(&kernels, sanitizers.as_deref()).expect("kernels that compile");
    for kernel in &kernels {
        let mut block = Block::zeros(20);
        library.launch(kernel, &[block.pointer(0)]).expect("a launch");
        let floats =
            block.bytes().chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().expect("four bytes")));
        assert_eq!(floats.collect::<Vec<f32>>(), [1.0; 5]);
    }
}

#[test]
fn an_overrun_of_one_element_is_seen() {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_string());
    let runtime = Command::new(compiler).arg("-print-file-name=libasan.so").output().expect("a C++ compiler");
    let runtime = String::from_utf8(runtime.stdout).expect("a path");
    let run = |n_written: u32| {
        Command::new(std::env::current_exe().expect("a path"))
            .args(["--exact", "writes_so_many_elements", "--nocapture"])
            .env("LD_PRELOAD", runtime.trim())
            .env("ASAN_OPTIONS", "detect_leaks=0")
            .env(SANITIZERS, "address,undefined")
            .env(WRITTEN, n_written.to_string())
            .output()
            .expect("this test's executable")
    };
    let within = run(5);
    let messages = String::from_utf8_lossy(&within.stderr);
    assert!(within.status.success(), "{messages}");
    let beyond = run(6);
    let messages = String::from_utf8_lossy(&beyond.stderr);
    assert!(!beyond.status.success() && messages.contains("heap-buffer-overflow"), "{messages}");
    assert!(messages.contains("WRITE of size 4") && messages.contains("20-byte region"), "{messages}");
}
