//! Launches recorded once and issued as one: a CUDA graph. The host's share of a launch falls away, some microseconds each.
#![allow(unsafe_code)] // The driver is a C interface; handles live as long as the values that made them.

use cudarc::driver::{result, sys};

use super::card::Card;
use super::libraries::failed;
use crate::ExecutionError;

/// A graph that is ready to launch.
pub struct Graph {
    handle: sys::CUgraphExec,
}

impl Graph {
    /// From now on the stream records. Other threads may go on allocating.
    pub(super) fn begin(card: &Card, stream: sys::CUstream) -> Result<(), ExecutionError> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive.
        unsafe { result::stream::begin_capture(stream, mode) }.map_err(failed(&card.name))
    }

    /// What the stream has recorded.
    pub(super) fn end(card: &Card, stream: sys::CUstream) -> Result<Graph, ExecutionError> {
        // SAFETY: the stream is alive and records; the graph is destroyed once, when it has been made ready.
        unsafe {
            let graph = result::stream::end_capture(stream).map_err(failed(&card.name))?;
            let ready = result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0));
            let destroyed = result::graph::destroy(graph);
            let graph = Graph { handle: ready.map_err(failed(&card.name))? };
            destroyed.map_err(failed(&card.name))?;
            Ok(graph)
        }
    }

    /// Issues all that was recorded.
    pub(super) fn launch(&self, card: &Card, stream: sys::CUstream) -> Result<(), ExecutionError> {
        // SAFETY: both handles are alive; the memory that the launches read and write is that of the recording device.
        unsafe { result::graph::launch(self.handle, stream) }.map_err(failed(&card.name))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made in `end`; the driver keeps what still runs.
        let _ = unsafe { result::graph::exec_destroy(self.handle) };
    }
}
