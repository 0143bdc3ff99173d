//! The list of attribute formats. Fields stand in the order in which XLA prints them.

use super::*;
use crate::groups::ReplicaGroups;
use crate::module::CompId;
use crate::shape::{Dims, ShapeId};

attr_formats! {
    /// A list of dims: broadcast, transpose, reverse, concatenate, get-dimension-size …
    Dims(DimsAttrs) {
        /// Dim numbers.
        dimensions: Dims = "dimensions" Required;
    }

    /// `parameter(N)`; the number stands between the parentheses.
    Parameter(ParameterAttrs) {
        /// Position among the computation's parameters.
        number: i64 = "number" Always;
        /// One flag for each leaf: the same value on every replica.
        parameter_replication: Vec<bool> = "parameter_replication" IfSet;
    }

    /// `get-tuple-element`.
    TupleIndex(TupleIndexAttrs) {
        /// Which element.
        index: i64 = "index" Required;
    }

    /// `iota`.
    Iota(IotaAttrs) {
        /// The dim along which values grow.
        iota_dimension: i64 = "iota_dimension" Required;
    }

    /// `reshape` and `dynamic-reshape`.
    Reshape(ReshapeAttrs) {
        /// Dim whose size was inferred; -1 when none.
        inferred_dimension: Option<i64> = "inferred_dimension" IfSet;
    }

    /// `slice`.
    Slice(SliceAttrs) {
        /// One range for each dim.
        slice: Vec<SliceDim> = "slice" Required;
    }

    /// `dynamic-slice`.
    DynamicSlice(DynamicSliceAttrs) {
        /// Result dims.
        dynamic_slice_sizes: Dims = "dynamic_slice_sizes" Required;
    }

    /// `pad`.
    Pad(PadAttrs) {
        /// One entry for each dim.
        padding: Vec<PadDim> = "padding" Required;
    }

    /// `dot`, `ragged-dot` and `scaled-dot`.
    Dot(DotAttrs) {
        /// Batch dims of the left operand.
        lhs_batch_dims: Dims = "lhs_batch_dims" IfSet;
        /// Contracted dims of the left operand.
        lhs_contracting_dims: Dims = "lhs_contracting_dims" Always;
        /// Batch dims of the right operand.
        rhs_batch_dims: Dims = "rhs_batch_dims" IfSet;
        /// Contracted dims of the right operand.
        rhs_contracting_dims: Dims = "rhs_contracting_dims" Always;
        /// Ragged dims of the left operand (`ragged-dot`).
        lhs_ragged_dims: Dims = "lhs_ragged_dims" IfSet;
        /// Group dims of the right operand (`ragged-dot`).
        rhs_group_dims: Dims = "rhs_group_dims" IfSet;
        /// Precision of each operand: `default`, `high`, `highest`.
        operand_precision: Vec<Word> = "operand_precision" IfSet;
        /// Named algorithm, e.g. `dot_bf16_bf16_f32`.
        algorithm: Word = "algorithm" IfSet;
    }

    /// `convolution`.
    Conv(ConvAttrs) {
        /// Window over the spatial dims.
        window: Window = "window" IfSet;
        /// Which dim is which.
        dim_labels: ConvDims = "dim_labels" Required;
        /// Groups of features; absent means 1.
        feature_group_count: Option<i64> = "feature_group_count" IfSet;
        /// Groups of batches; absent means 1.
        batch_group_count: Option<i64> = "batch_group_count" IfSet;
        /// `fprop`, `dgrad`, `wgrad`.
        convolution_kind: Word = "convolution_kind" IfSet;
        /// Precision of each operand.
        operand_precision: Vec<Word> = "operand_precision" IfSet;
        /// Which operands are sparse, as written.
        sparsity_config: RawBraces = "sparsity_config" IfSet;
    }

    /// `gather`.
    Gather(GatherAttrs) {
        /// Result dims that index into a slice.
        offset_dims: Dims = "offset_dims" Required;
        /// Operand dims of slice size 1 that the result drops.
        collapsed_slice_dims: Dims = "collapsed_slice_dims" Required;
        /// Operand dim of each component of an index vector.
        start_index_map: Dims = "start_index_map" Required;
        /// Operand dims that go with batch dims of the indices.
        operand_batching_dims: Dims = "operand_batching_dims" IfSet;
        /// Their partners in the indices.
        start_indices_batching_dims: Dims = "start_indices_batching_dims" IfSet;
        /// Dim of the indices that holds the index vectors; their rank means scalars.
        index_vector_dim: i64 = "index_vector_dim" Required;
        /// Slice size along each operand dim.
        slice_sizes: Dims = "slice_sizes" Required;
        /// Promise that the indices are sorted.
        indices_are_sorted: bool = "indices_are_sorted" IfSet;
    }

    /// `scatter`.
    Scatter(ScatterAttrs) {
        /// Update dims that index into a window.
        update_window_dims: Dims = "update_window_dims" Required;
        /// Operand dims of window size 1 that the updates lack.
        inserted_window_dims: Dims = "inserted_window_dims" Required;
        /// Operand dim of each component of an index vector.
        scatter_dims_to_operand_dims: Dims = "scatter_dims_to_operand_dims" Required;
        /// Operand dims that go with batch dims of the indices.
        input_batching_dims: Dims = "input_batching_dims" IfSet;
        /// Their partners in the indices.
        scatter_indices_batching_dims: Dims = "scatter_indices_batching_dims" IfSet;
        /// Dim of the indices that holds the index vectors.
        index_vector_dim: i64 = "index_vector_dim" Required;
        /// Promise that the indices are sorted.
        indices_are_sorted: bool = "indices_are_sorted" IfSet;
        /// Promise that no index comes twice.
        unique_indices: bool = "unique_indices" IfSet;
        /// Combines an old element with an update.
        to_apply: Option<CompId> = "to_apply" Required;
    }

    /// `reduce` and `map`.
    Reduce(ReduceAttrs) {
        /// Dims reduced (all dims for `map`).
        dimensions: Dims = "dimensions" Required;
        /// The reducer.
        to_apply: Option<CompId> = "to_apply" Required;
    }

    /// `sort`.
    Sort(SortAttrs) {
        /// The dim along which to sort.
        dimensions: Dims = "dimensions" Required;
        /// Equal elements keep their order.
        is_stable: bool = "is_stable" IfSet;
        /// `less(a0, b0, a1, b1, …)`.
        to_apply: Option<CompId> = "to_apply" Required;
    }

    /// `reduce-window`.
    ReduceWindow(ReduceWindowAttrs) {
        /// Window over all dims.
        window: Window = "window" IfSet;
        /// The reducer.
        to_apply: Option<CompId> = "to_apply" Required;
    }

    /// `select-and-scatter`.
    SelectAndScatter(SelectAndScatterAttrs) {
        /// Window over all dims.
        window: Window = "window" IfSet;
        /// Picks an element of a window.
        select: Option<CompId> = "select" Required;
        /// Adds a source element to what is picked.
        scatter: Option<CompId> = "scatter" Required;
    }

    /// `scan`: a loop over slices along one dim.
    Scan(ScanAttrs) {
        /// The dim scanned.
        dimensions: Dims = "dimensions" IfSet;
        /// Number of carried values among the operands.
        num_carries: Option<i64> = "num_carries" IfSet;
        /// From the last slice to the first.
        is_reverse: bool = "is_reverse" IfSet;
        /// Whether the body is associative.
        is_associative: Option<bool> = "is_associative" IfSet;
        /// The body.
        to_apply: Option<CompId> = "to_apply" Required;
    }

    /// `compare`.
    Compare(CompareAttrs) {
        /// Which comparison.
        direction: Comparison = "direction" Required;
        /// `FLOAT`, `TOTALORDER`, `SIGNED`, `UNSIGNED`; empty is the element type's default.
        order: Word = "type" IfSet;
    }

    /// `call`.
    Call(CallAttrs) {
        /// What is called.
        to_apply: Option<CompId> = "to_apply" Required;
        /// Marks a call composed of a named operation.
        is_composite: bool = "is_composite" IfSet;
        /// Aliases of outputs and operands.
        output_to_operand_aliasing: Vec<OperandAlias> = "output_to_operand_aliasing" IfSet;
    }

    /// `fusion`.
    Fusion(FusionAttrs) {
        /// `kLoop`, `kInput`, `kOutput`, `kCustom`.
        kind: Word = "kind" Required;
        /// Aliases of outputs and operands.
        output_to_operand_aliasing: Vec<OperandAlias> = "output_to_operand_aliasing" IfSet;
        /// The fused computation.
        calls: Option<CompId> = "calls" Required;
    }

    /// `while`.
    While(WhileAttrs) {
        /// Decides whether another iteration runs.
        condition: Option<CompId> = "condition" Required;
        /// One iteration.
        body: Option<CompId> = "body" Required;
    }

    /// `conditional`: two named branches for a `pred`, a list for an `s32`.
    Conditional(ConditionalAttrs) {
        /// Branch for true.
        true_computation: Option<CompId> = "true_computation" IfSet;
        /// Branch for false.
        false_computation: Option<CompId> = "false_computation" IfSet;
        /// Branches by number; the last one also takes numbers out of range.
        branch_computations: Vec<CompId> = "branch_computations" IfSet;
    }

    /// `custom-call`.
    Custom(CustomAttrs) {
        /// Window of a library convolution.
        window: Window = "window" IfSet;
        /// Dim labels of a library convolution.
        dim_labels: ConvDims = "dim_labels" IfSet;
        /// Groups of features of a library convolution.
        feature_group_count: Option<i64> = "feature_group_count" IfSet;
        /// Groups of batches of a library convolution.
        batch_group_count: Option<i64> = "batch_group_count" IfSet;
        /// Precision of each operand of a library call.
        operand_precision: Vec<Word> = "operand_precision" IfSet;
        /// `PADDING_VALID` or `PADDING_SAME`.
        padding_type: Word = "padding_type" IfSet;
        /// What is called.
        custom_call_target: QuotedText = "custom_call_target" Required;
        /// Layouts that the operands must have.
        operand_layout_constraints: Option<Vec<ShapeId>> = "operand_layout_constraints" IfSet;
        /// It may not be removed or duplicated.
        custom_call_has_side_effect: bool = "custom_call_has_side_effect" IfSet;
        /// One computation that it calls.
        to_apply: Option<CompId> = "to_apply" IfSet;
        /// Computations that it calls.
        called_computations: Vec<CompId> = "called_computations" IfSet;
        /// Shape and value of a constant argument, as written.
        literal: RawLiteral = "literal" IfSet;
        /// Aliases of outputs and operands.
        output_to_operand_aliasing: Vec<OperandAlias> = "output_to_operand_aliasing" IfSet;
        /// When it may run.
        schedule: Word = "schedule" IfSet;
        /// Version of the call interface.
        api_version: Word = "api_version" IfSet;
    }

    /// Collectives that combine: all-reduce and reduce-scatter.
    Combining(CombiningAttrs) {
        /// Channel; its presence chooses the group mode.
        channel_id: Option<i64> = "channel_id" IfSet;
        /// Who takes part.
        replica_groups: ReplicaGroups = "replica_groups" Always;
        /// Operand layouts are fixed.
        constrain_layout: bool = "constrain_layout" IfSet;
        /// The groups hold flat device ids.
        use_global_device_ids: bool = "use_global_device_ids" IfSet;
        /// Scattered dim (reduce-scatter).
        dimensions: Dims = "dimensions" IfSet;
        /// The reducer.
        to_apply: Option<CompId> = "to_apply" Required;
    }

    /// all-gather.
    Gathering(GatheringAttrs) {
        /// Channel; its presence chooses the group mode.
        channel_id: Option<i64> = "channel_id" IfSet;
        /// Who takes part.
        replica_groups: ReplicaGroups = "replica_groups" Always;
        /// Operand layouts are fixed.
        constrain_layout: bool = "constrain_layout" IfSet;
        /// The dim along which shards are concatenated.
        dimensions: Dims = "dimensions" Required;
        /// The groups hold flat device ids.
        use_global_device_ids: bool = "use_global_device_ids" IfSet;
    }

    /// all-to-all, ragged-all-to-all and collective-broadcast.
    Exchanging(ExchangingAttrs) {
        /// Channel; its presence chooses the group mode.
        channel_id: Option<i64> = "channel_id" IfSet;
        /// Who takes part.
        replica_groups: ReplicaGroups = "replica_groups" Always;
        /// Operand layouts are fixed.
        constrain_layout: bool = "constrain_layout" IfSet;
        /// Split and concatenated dim of an array all-to-all.
        dimensions: Dims = "dimensions" IfSet;
    }

    /// collective-permute.
    Permuting(PermutingAttrs) {
        /// Channel; its presence chooses the id mode.
        channel_id: Option<i64> = "channel_id" IfSet;
        /// `{source,target}` pairs.
        source_target_pairs: Vec<(i64, i64)> = "source_target_pairs" Always;
        /// Slices moved, for the in-place form.
        slice_sizes: RawBraces = "slice_sizes" IfSet;
    }

    /// send, recv and their -done.
    Transfer(TransferAttrs) {
        /// Channel.
        channel_id: Option<i64> = "channel_id" IfSet;
        /// The other side is the host.
        is_host_transfer: bool = "is_host_transfer" IfSet;
    }

    /// infeed.
    Infeed(InfeedAttrs) {
        /// Opaque configuration.
        infeed_config: QuotedText = "infeed_config" IfSet;
    }

    /// outfeed.
    Outfeed(OutfeedAttrs) {
        /// Shape sent.
        outfeed_shape: Option<ShapeId> = "outfeed_shape" IfSet;
        /// Opaque configuration.
        outfeed_config: QuotedText = "outfeed_config" IfSet;
    }

    /// rng.
    Rng(RngAttrs) {
        /// `rng_uniform` or `rng_normal`.
        distribution: Word = "distribution" Required;
    }

    /// rng-bit-generator.
    RngBits(RngBitsAttrs) {
        /// `rng_default`, `rng_three_fry`, `rng_philox`.
        algorithm: Word = "algorithm" Required;
    }

    /// rng-get-and-update-state.
    RngState(RngStateAttrs) {
        /// How far the state moves.
        delta: i64 = "delta" Required;
    }

    /// triangular-solve.
    TriangularSolve(TriangularSolveAttrs) {
        /// Solve `op(a) x = b`, not `x op(a) = b`.
        left_side: bool = "left_side" IfSet;
        /// `a` is lower triangular.
        lower: bool = "lower" IfSet;
        /// The diagonal is taken as ones.
        unit_diagonal: bool = "unit_diagonal" IfSet;
        /// `NO_TRANSPOSE`, `TRANSPOSE`, `ADJOINT`.
        transpose_a: Word = "transpose_a" IfSet;
    }

    /// cholesky.
    Cholesky(CholeskyAttrs) {
        /// The result is lower triangular.
        lower: bool = "lower" IfSet;
    }

    /// fft.
    Fft(FftAttrs) {
        /// `FFT`, `IFFT`, `RFFT`, `IRFFT`.
        fft_type: Word = "fft_type" Required;
        /// Sizes of the transformed (last) dims.
        fft_length: Dims = "fft_length" Required;
    }

    /// reduce-precision.
    ReducePrecision(ReducePrecisionAttrs) {
        /// Exponent bits kept.
        exponent_bits: i64 = "exponent_bits" Required;
        /// Mantissa bits kept.
        mantissa_bits: i64 = "mantissa_bits" Required;
    }

    /// batch-norm-training, -inference and -grad.
    BatchNorm(BatchNormAttrs) {
        /// Added to the variance.
        epsilon: F32Bits = "epsilon" Required;
        /// Dim of the features.
        feature_index: i64 = "feature_index" Required;
    }

    /// domain.
    Domain(DomainAttrs) {
        /// The two sides' shardings.
        domain: Option<Box<DomainSharding>> = "domain" Required;
    }

    /// Generic async-start, -update and -done; the wrapped computation holds the real op.
    Async(AsyncAttrs) {
        /// Thread on which the wrapped computation runs.
        async_execution_thread: Option<QuotedText> = "async_execution_thread" IfSet;
        /// Aliases of parts of the start's result and operands.
        output_to_operand_aliasing: Vec<OperandAlias> = "output_to_operand_aliasing" IfSet;
        /// The wrapped computation.
        calls: Option<CompId> = "calls" IfSet;
    }

    /// copy-start.
    CopyStart(CopyStartAttrs) {
        /// Index of a cross-program prefetch.
        cross_program_prefetch_index: Option<i64> = "cross_program_prefetch_index" IfSet;
    }

    /// topk.
    TopK(TopKAttrs) {
        /// How many.
        k: i64 = "k" Required;
        /// The largest, not the smallest.
        largest: bool = "largest" Always;
        /// Equal elements keep their order, which they do here in any case.
        is_stable: bool = "is_stable" IfSet;
    }

    /// The entries of `metadata={…}`.
    Metadata(Metadata) {
        /// Op type of the framework.
        op_type: Option<QuotedText> = "op_type" IfSet;
        /// Name path of the framework.
        op_name: Option<QuotedText> = "op_name" IfSet;
        /// Source file.
        source_file: Option<QuotedText> = "source_file" IfSet;
        /// First line.
        source_line: Option<i64> = "source_line" IfSet;
        /// Last line.
        source_end_line: Option<i64> = "source_end_line" IfSet;
        /// First column.
        source_column: Option<i64> = "source_column" IfSet;
        /// Last column.
        source_end_column: Option<i64> = "source_end_column" IfSet;
        /// Index into the stack frame table.
        stack_frame_id: Option<i64> = "stack_frame_id" IfSet;
        /// Bytes of the code made from it.
        size_of_generated_code_in_bytes: Option<i64> = "size_of_generated_code_in_bytes" IfSet;
        /// Kinds of profile data.
        profile_type: Dims = "profile_type" IfSet;
        /// Name of the op of which this is a duplicate.
        deduplicated_name: Option<QuotedText> = "deduplicated_name" IfSet;
        /// Layouts may not change.
        preserve_layout: bool = "preserve_layout" IfSet;
        /// Name for the scheduler.
        scheduling_name: Option<QuotedText> = "scheduling_name" IfSet;
        /// Attributes that a front end attaches for itself.
        metadata_payload: Option<QuotedText> = "metadata_payload" IfSet;
    }
}
