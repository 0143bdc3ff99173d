//! What an instruction of one opcode has besides numbers.

messages! {
    "BlockScalingConfig" block_scaling_config {
        Message(tensor_block_scaling_config) lhs = 1 one;
        Message(tensor_block_scaling_config) rhs = 2 one;
    }
    "BlockScalingConfig.TensorBlockScalingConfig" tensor_block_scaling_config {
        Int32 scale_idx = 1 one;
        Int32 zero_idx = 2 maybe;
        Int64 strides = 3 many;
        Int64 steps = 4 many;
    }
    "CholeskyOptions" cholesky_options {
        Bool lower = 1 one;
    }
    "ConvolutionDimensionNumbers" convolution_dimension_numbers {
        Int64 kernel_input_feature_dimension = 3 one;
        Int64 kernel_output_feature_dimension = 4 one;
        Int64 kernel_spatial_dimensions = 6 many;
        Int64 input_batch_dimension = 7 one;
        Int64 input_feature_dimension = 8 one;
        Int64 output_batch_dimension = 9 one;
        Int64 output_feature_dimension = 10 one;
        Int64 input_spatial_dimensions = 11 many;
        Int64 output_spatial_dimensions = 12 many;
    }
    "DotDimensionNumbers" dot_dimension_numbers {
        Int64 lhs_contracting_dimensions = 1 many;
        Int64 rhs_contracting_dimensions = 2 many;
        Int64 lhs_batch_dimensions = 3 many;
        Int64 rhs_batch_dimensions = 4 many;
    }
    "GatherDimensionNumbers" gather_dimension_numbers {
        Int64 offset_dims = 1 many;
        Int64 collapsed_slice_dims = 2 many;
        Int64 start_index_map = 3 many;
        Int64 index_vector_dim = 4 one;
        Int64 operand_batching_dims = 5 many;
        Int64 start_indices_batching_dims = 6 many;
    }
    "OriginalArrayProto" original_array {
        Text instruction_name = 1 one;
        Int64 shape_index = 2 many;
    }
    "OriginalValueElementProto" original_value_element {
        Int64 shape_index = 1 many;
        Message(original_array) original_array = 2 one;
    }
    "OriginalValueProto" original_value {
        Message(original_value_element) elements = 1 many;
        Bool is_synthetic_call = 2 one;
        Text call_hierarchy = 3 maybe;
    }
    "OriginalValueRecoveryTableProto" original_value_recovery_table {
        Message(original_value_recovery_table_entry) entries = 1 many;
    }
    "OriginalValueRecoveryTableProto.Entry" original_value_recovery_table_entry {
        Message(original_array) old_original_array = 1 one;
        Message(original_array) new_original_array = 2 one;
        Message(hlo_module) recovery_module = 3 one;
    }
    "OutputOperandAliasing" output_operand_aliasing {
        Int64 output_shape_index = 1 many;
        Int64 operand_index = 2 one;
        Int64 operand_shape_index = 3 many;
    }
    "PaddingConfig" padding_config {
        Message(padding_config_dimension) dimensions = 1 many;
    }
    "PaddingConfig.PaddingConfigDimension" padding_config_dimension {
        Int64 edge_padding_low = 1 one;
        Int64 edge_padding_high = 2 one;
        Int64 interior_padding = 3 one;
    }
    "ParameterReplication" parameter_replication {
        Bool replicated_at_leaf_buffers = 1 many;
    }
    "PrecisionConfig" precision_config {
        Enum(PRECISION) operand_precision = 1 many;
        Enum(ALGORITHM) algorithm = 2 one;
    }
    "RaggedDotDimensionNumbers" ragged_dot_dimension_numbers {
        Message(dot_dimension_numbers) dot_dimension_numbers = 1 one;
        Int64 lhs_ragged_dimensions = 2 many;
        Int64 rhs_group_dimensions = 3 many;
    }
    "ResultAccuracy" result_accuracy {
        Enum(ACCURACY_MODE) mode = 1 either;
        Message(result_accuracy_tolerance) tolerance = 2 either;
    }
    "ResultAccuracy.Tolerance" result_accuracy_tolerance {
        Double atol = 1 one;
        Double rtol = 2 one;
        Int64 ulps = 3 one;
    }
    "ScatterDimensionNumbers" scatter_dimension_numbers {
        Int64 update_window_dims = 1 many;
        Int64 inserted_window_dims = 2 many;
        Int64 scatter_dims_to_operand_dims = 3 many;
        Int64 index_vector_dim = 4 one;
        Int64 input_batching_dims = 5 many;
        Int64 scatter_indices_batching_dims = 6 many;
    }
    "ShuffleMode" shuffle_mode {
        Message(shuffle_mode_rotate) rotate = 1 either;
    }
    "ShuffleMode.Rotate" shuffle_mode_rotate {
        Int64 shifts = 1 many;
    }
    "SparsityConfig" sparsity_config {
        Message(tensor_sparsity_config) lhs = 1 one;
        Message(tensor_sparsity_config) rhs = 2 one;
    }
    "SparsityConfig.TensorSparsityConfig" tensor_sparsity_config {
        Int64 num_non_zero = 1 one;
        Int64 block_size = 2 one;
        Int64 dimension = 3 one;
        Int64 stride = 4 one;
        Int32 idx = 5 one;
    }
    "Statistic" statistic {
        Text stat_name = 1 one;
        Double stat_val = 2 one;
    }
    "StatisticsViz" statistics_viz {
        Int64 stat_index_to_visualize = 1 one;
        Message(statistic) statistics = 2 many;
    }
    "TriangularSolveOptions" triangular_solve_options {
        Bool left_side = 1 one;
        Bool lower = 2 one;
        Bool unit_diagonal = 3 one;
        Enum(TRANSPOSE) transpose_a = 4 one;
    }
    "Window" window {
        Message(window_dimension) dimensions = 1 many;
    }
    "WindowDimension" window_dimension {
        Int64 size = 1 one;
        Int64 stride = 2 one;
        Int64 padding_low = 3 one;
        Int64 padding_high = 4 one;
        Int64 window_dilation = 5 one;
        Int64 base_dilation = 6 one;
        Bool window_reversal = 7 one;
    }
}
