//! Which field of the proto holds which attribute of a format: one list for both directions, in the order of the format's own
//! fields.

use crate::table::*;
use At::{Called, Calls, DotDims, Groups, In, Nowhere, Order, Own, Present};
use hlo_ir::attrs::AttrFormat;

/// Where an attribute stands in an instruction.
#[derive(Clone, Copy, Debug)]
pub(crate) enum At {
    /// In a field of the instruction; absent if it has its default.
    Own(Field),
    /// In a message that stands even if it is empty.
    Present(Field),
    /// In a field of a message of the instruction.
    In(Field, Field),
    /// In a field of the dimension numbers of a dot, which a ragged dot has deeper.
    DotDims(Field),
    /// The called computation of this place.
    Called(usize),
    /// All called computations from this place on.
    Calls(usize),
    /// In one of the fields for replica groups.
    Groups,
    /// The order of a comparison.
    Order,
    /// Nowhere: no proto has it any more, or all have it alike.
    Nowhere,
}

impl At {
    /// The number by which fields are ordered; `None` for what is no field of its own.
    pub(crate) fn number(self) -> Option<u32> {
        match self {
            Own(field) | Present(field) | In(field, _) => Some(field.number),
            DotDims(_) => Some(hlo_instruction::dot_dimension_numbers.number),
            Groups => Some(hlo_instruction::collective_device_list.number),
            Order => Some(hlo_instruction::comparison_type.number),
            Called(_) | Calls(_) | Nowhere => None,
        }
    }
}

/// Where the attributes of a format stand, one for each of [`AttrFormat::fields`] and in their order.
pub(crate) fn bindings(format: AttrFormat) -> &'static [At] {
    use hlo_instruction as i;
    match format {
        AttrFormat::Plain | AttrFormat::Constant => &[],
        AttrFormat::Dims => const { &[Own(i::dimensions)] },
        AttrFormat::Parameter => {
            const {
                &[
                    Own(i::parameter_number),
                    In(i::parameter_replication, parameter_replication::replicated_at_leaf_buffers),
                ]
            }
        }
        AttrFormat::TupleIndex => const { &[Own(i::tuple_index)] },
        AttrFormat::Iota | AttrFormat::Reshape => const { &[Own(i::dimensions)] },
        AttrFormat::Slice => const { &[Own(i::slice_dimensions)] },
        AttrFormat::DynamicSlice => const { &[Own(i::dynamic_slice_sizes)] },
        AttrFormat::Pad => const { &[Present(i::padding_config)] },
        AttrFormat::Dot => DOT,
        AttrFormat::Conv => CONV,
        AttrFormat::Gather => GATHER,
        AttrFormat::Scatter => SCATTER,
        AttrFormat::Reduce => const { &[Own(i::dimensions), Called(0)] },
        AttrFormat::Sort => const { &[Own(i::dimensions), Own(i::is_stable), Called(0)] },
        AttrFormat::ReduceWindow => const { &[Present(i::window), Called(0)] },
        AttrFormat::SelectAndScatter => const { &[Present(i::window), Called(0), Called(1)] },
        AttrFormat::Scan => {
            const { &[Own(i::dimensions), Own(i::num_carries), Own(i::is_reverse), Own(i::is_associative), Called(0)] }
        }
        AttrFormat::Compare => const { &[Own(i::comparison_direction), Order] },
        AttrFormat::Call => const { &[Called(0), Own(i::is_composite), Own(i::output_operand_aliasing)] },
        AttrFormat::Fusion => const { &[Own(i::fusion_kind), Own(i::output_operand_aliasing), Called(0)] },
        // The text has the condition first, the proto the body.
        AttrFormat::While => const { &[Called(1), Called(0)] },
        // By number, or the first for true: the shape of the first operand tells.
        AttrFormat::Conditional => const { &[Called(0), Called(1), Calls(0)] },
        AttrFormat::Custom => CUSTOM,
        AttrFormat::Combining => COMBINING,
        AttrFormat::Gathering => {
            const {
                &[
                    Own(i::channel_id),
                    Groups,
                    Own(i::constrain_layout),
                    Own(i::dimensions),
                    Own(i::use_global_device_ids),
                ]
            }
        }
        AttrFormat::Exchanging => const { &[Own(i::channel_id), Groups, Own(i::constrain_layout), Own(i::dimensions)] },
        AttrFormat::Permuting => {
            const { &[Own(i::channel_id), Own(i::source_target_pairs), Own(i::dynamic_slice_sizes)] }
        }
        AttrFormat::Transfer => const { &[Own(i::channel_id), Own(i::is_host_transfer)] },
        AttrFormat::Infeed => const { &[Own(i::infeed_config)] },
        AttrFormat::Outfeed => const { &[Own(i::outfeed_shape), Own(i::outfeed_config)] },
        AttrFormat::Rng => const { &[Own(i::distribution)] },
        AttrFormat::RngBits => const { &[Own(i::rng_algorithm)] },
        AttrFormat::RngState => const { &[Own(i::delta)] },
        AttrFormat::TriangularSolve => TRIANGULAR_SOLVE,
        AttrFormat::Cholesky => const { &[In(i::cholesky_options, cholesky_options::lower)] },
        AttrFormat::Fft => const { &[Own(i::fft_type), Own(i::fft_length)] },
        AttrFormat::ReducePrecision => const { &[Own(i::exponent_bits), Own(i::mantissa_bits)] },
        AttrFormat::BatchNorm => const { &[Own(i::epsilon), Own(i::feature_index)] },
        AttrFormat::Domain => const { &[Own(i::domain_entry_sharding)] },
        AttrFormat::Async => const { &[Own(i::async_execution_thread), Own(i::output_operand_aliasing), Called(0)] },
        AttrFormat::CopyStart => const { &[Own(i::cross_program_prefetch_index)] },
        AttrFormat::TopK => const { &[Own(i::k), Own(i::largest), Nowhere] },
        AttrFormat::Metadata => METADATA,
    }
}

const DOT: &[At] = &[
    DotDims(dot_dimension_numbers::lhs_batch_dimensions),
    DotDims(dot_dimension_numbers::lhs_contracting_dimensions),
    DotDims(dot_dimension_numbers::rhs_batch_dimensions),
    DotDims(dot_dimension_numbers::rhs_contracting_dimensions),
    In(hlo_instruction::ragged_dot_dimension_numbers, ragged_dot_dimension_numbers::lhs_ragged_dimensions),
    In(hlo_instruction::ragged_dot_dimension_numbers, ragged_dot_dimension_numbers::rhs_group_dimensions),
    In(hlo_instruction::precision_config, precision_config::operand_precision),
    In(hlo_instruction::precision_config, precision_config::algorithm),
];

const CONV: &[At] = &[
    Present(hlo_instruction::window),
    Present(hlo_instruction::convolution_dimension_numbers),
    Own(hlo_instruction::feature_group_count),
    Own(hlo_instruction::batch_group_count),
    Own(hlo_instruction::conv_kind),
    In(hlo_instruction::precision_config, precision_config::operand_precision),
    Own(hlo_instruction::sparsity_config),
];

const GATHER: &[At] = &[
    In(hlo_instruction::gather_dimension_numbers, gather_dimension_numbers::offset_dims),
    In(hlo_instruction::gather_dimension_numbers, gather_dimension_numbers::collapsed_slice_dims),
    In(hlo_instruction::gather_dimension_numbers, gather_dimension_numbers::start_index_map),
    In(hlo_instruction::gather_dimension_numbers, gather_dimension_numbers::operand_batching_dims),
    In(hlo_instruction::gather_dimension_numbers, gather_dimension_numbers::start_indices_batching_dims),
    In(hlo_instruction::gather_dimension_numbers, gather_dimension_numbers::index_vector_dim),
    Own(hlo_instruction::gather_slice_sizes),
    Own(hlo_instruction::indices_are_sorted),
];

const SCATTER: &[At] = &[
    In(hlo_instruction::scatter_dimension_numbers, scatter_dimension_numbers::update_window_dims),
    In(hlo_instruction::scatter_dimension_numbers, scatter_dimension_numbers::inserted_window_dims),
    In(hlo_instruction::scatter_dimension_numbers, scatter_dimension_numbers::scatter_dims_to_operand_dims),
    In(hlo_instruction::scatter_dimension_numbers, scatter_dimension_numbers::input_batching_dims),
    In(hlo_instruction::scatter_dimension_numbers, scatter_dimension_numbers::scatter_indices_batching_dims),
    In(hlo_instruction::scatter_dimension_numbers, scatter_dimension_numbers::index_vector_dim),
    Own(hlo_instruction::indices_are_sorted),
    Own(hlo_instruction::unique_indices),
    Called(0),
];

const CUSTOM: &[At] = &[
    Own(hlo_instruction::window),
    Own(hlo_instruction::convolution_dimension_numbers),
    Own(hlo_instruction::feature_group_count),
    Own(hlo_instruction::batch_group_count),
    In(hlo_instruction::precision_config, precision_config::operand_precision),
    Own(hlo_instruction::padding_type),
    Own(hlo_instruction::custom_call_target),
    Own(hlo_instruction::operand_shapes_with_layout),
    Own(hlo_instruction::custom_call_has_side_effect),
    Called(0),
    Calls(0),
    Own(hlo_instruction::literal),
    Own(hlo_instruction::output_operand_aliasing),
    Own(hlo_instruction::custom_call_schedule),
    Own(hlo_instruction::custom_call_api_version),
];

const COMBINING: &[At] = &[
    Own(hlo_instruction::channel_id),
    Groups,
    Own(hlo_instruction::constrain_layout),
    Own(hlo_instruction::use_global_device_ids),
    Own(hlo_instruction::dimensions),
    Called(0),
];

const TRIANGULAR_SOLVE: &[At] = &[
    In(hlo_instruction::triangular_solve_options, triangular_solve_options::left_side),
    In(hlo_instruction::triangular_solve_options, triangular_solve_options::lower),
    In(hlo_instruction::triangular_solve_options, triangular_solve_options::unit_diagonal),
    In(hlo_instruction::triangular_solve_options, triangular_solve_options::transpose_a),
];

const METADATA: &[At] = &[
    Own(op_metadata::op_type),
    Own(op_metadata::op_name),
    Own(op_metadata::source_file),
    Own(op_metadata::source_line),
    Own(op_metadata::source_end_line),
    Own(op_metadata::source_column),
    Own(op_metadata::source_end_column),
    Own(op_metadata::stack_frame_id),
    Own(op_metadata::size_of_generated_code_in_bytes),
    Own(op_metadata::profile_type),
    Own(op_metadata::deduplicated_name),
    Nowhere,
    Own(op_metadata::scheduling_name),
    In(op_metadata::metadata_payload, payload::value),
];

#[cfg(test)]
mod tests {
    use super::*;
    use hlo_ir::Opcode;

    #[test]
    fn every_attribute_has_its_place() {
        let formats = Opcode::ALL.iter().map(|op| op.row().format).chain([AttrFormat::Metadata]);
        for format in formats {
            assert_eq!(bindings(format).len(), format.fields().len(), "{format:?}");
        }
    }
}
