//! The module, its computations and instructions, and the tables of a module.

messages! {
    "CrossProgramPrefetch" cross_program_prefetch {
        Int64 parameter = 1 one;
        Int64 index = 2 many;
        Int64 offset = 3 one;
    }
    "DeviceAssignmentProto" device_assignment {
        Int32 replica_count = 1 one;
        Int32 computation_count = 2 one;
        Message(computation_device) computation_devices = 3 many;
    }
    "DeviceAssignmentProto.ComputationDevice" computation_device {
        Int64 replica_device_ids = 1 many;
    }
    "HloBufferDonorProto" hlo_buffer_donor {
        Message(buffer_donor_entry) entries = 1 many;
    }
    "HloBufferDonorProto.BufferDonorEntryProto" buffer_donor_entry {
        Int64 parameter_number = 1 one;
        Int64 parameter_shape_index = 2 many;
    }
    "HloComputationProto" hlo_computation {
        Text name = 1 one;
        Message(hlo_instruction) instructions = 2 many;
        Message(program_shape) program_shape = 4 one;
        Int64 id = 5 one;
        Int64 root_id = 6 one;
        Bool is_fusion_computation = 7 one;
        Text execution_thread = 8 one;
        Bytes backend_config = 9 one kept;
    }
    "HloInputOutputAliasProto" hlo_input_output_alias {
        Message(alias_entry) entries = 1 many;
    }
    "HloInputOutputAliasProto.AliasEntryProto" alias_entry {
        Int64 output_shape_index = 1 many;
        Int64 parameter_number = 2 one;
        Int64 parameter_shape_index = 3 many;
        Enum(ALIAS_KIND) kind = 4 one;
    }
    "HloInstructionProto" hlo_instruction {
        Text name = 1 one;
        Text opcode = 2 one;
        Message(shape) shape = 3 one;
        Message(op_metadata) metadata = 7 one;
        Message(literal) literal = 8 one;
        Int64 parameter_number = 9 one;
        Text fusion_kind = 11 one;
        Int64 tuple_index = 13 one;
        Int64 dimensions = 14 many;
        Message(window) window = 15 one;
        Message(convolution_dimension_numbers) convolution_dimension_numbers = 16 one;
        Message(slice_dimensions) slice_dimensions = 17 many;
        Int32 exponent_bits = 18 one;
        Int32 mantissa_bits = 19 one;
        Int64 dynamic_slice_sizes = 20 many;
        Message(padding_config) padding_config = 21 one;
        Bytes outfeed_config = 22 one;
        Enum(RANDOM_DISTRIBUTION) distribution = 23 one;
        Float epsilon = 24 one;
        Int64 feature_index = 25 one;
        Int64 channel_id = 26 one;
        Bytes infeed_config = 27 one;
        Text custom_call_target = 28 one;
        Message(shape) outfeed_shape = 29 one;
        Message(dot_dimension_numbers) dot_dimension_numbers = 30 one;
        Enum(FFT_TYPE) fft_type = 31 one;
        Int64 fft_length = 32 many;
        Message(gather_dimension_numbers) gather_dimension_numbers = 33 one;
        Int64 gather_slice_sizes = 34 many;
        Int64 id = 35 one;
        Int64 operand_ids = 36 many;
        Int64 control_predecessor_ids = 37 many;
        Int64 called_computation_ids = 38 many;
        Message(op_sharding) sharding = 40 one;
        Bytes backend_config = 43 one;
        Int64 all_reduce_id = 45 one;
        Bool is_host_transfer = 47 one;
        Message(scatter_dimension_numbers) scatter_dimension_numbers = 48 one;
        Message(replica_group) replica_groups = 49 many;
        Int64 feature_group_count = 50 one;
        Message(precision_config) precision_config = 51 one;
        Message(source_target) source_target_pairs = 52 many;
        Message(op_sharding) domain_entry_sharding = 54 one;
        Message(op_sharding) domain_exit_sharding = 55 one;
        Bool constrain_layout = 56 one;
        Message(shape) operand_shapes_with_layout = 57 many;
        Int64 batch_group_count = 58 one;
        Message(triangular_solve_options) triangular_solve_options = 59 one;
        Bool is_stable = 60 one;
        Message(parameter_replication) parameter_replication = 61 one;
        Message(cholesky_options) cholesky_options = 62 one;
        Text comparison_direction = 63 one;
        Bool custom_call_has_side_effect = 65 one;
        Int64 delta = 66 one;
        Bool indices_are_sorted = 67 one;
        Message(frontend_attributes) frontend_attributes = 68 one;
        Bool unique_indices = 69 one;
        Enum(RANDOM_ALGORITHM) rng_algorithm = 70 one;
        Bool use_global_device_ids = 71 one;
        Text comparison_type = 72 one;
        Bool is_cross_program_prefetch = 73 one kept;
        Message(output_operand_aliasing) output_operand_aliasing = 74 many;
        Enum(PADDING_TYPE) padding_type = 75 one;
        Enum(CUSTOM_CALL_SCHEDULE) custom_call_schedule = 76 one;
        Enum(CUSTOM_CALL_API_VERSION) custom_call_api_version = 77 one;
        Text async_execution_thread = 79 one;
        Int32 cross_program_prefetch_index = 80 either;
        Int64 k = 81 one;
        Message(statistics_viz) statistics_viz = 82 one;
        Bool largest = 85 one;
        Message(collective_device_list) collective_device_list = 87 either;
        Message(original_value) original_value = 88 one;
        Bool is_composite = 89 one;
        Message(ragged_dot_dimension_numbers) ragged_dot_dimension_numbers = 90 one;
        Message(result_accuracy) result_accuracy = 91 one;
        Message(iota_replica_group_list) iota_collective_device_list = 92 either;
        Message(mesh_axes_replica_group_list) mesh_axes_replica_group_list = 93 either;
        Bool is_reverse = 94 one;
        Int64 num_carries = 95 one;
        Enum(TRI_STATE) is_associative = 96 one;
        Enum(CONVOLUTION_KIND) conv_kind = 97 one;
        Message(sparsity_config) sparsity_config = 98 one;
        Message(payload) backend_config_payload = 99 one kept;
        Bool has_dynamic_root = 100 one kept;
        Message(block_scaling_config) block_scaling_config = 101 one kept;
        Text comparison_order = 102 one;
        Message(shuffle_mode) shuffle_mode = 103 one kept;
    }
    "HloInstructionProto.SliceDimensions" slice_dimensions {
        Int64 start = 1 one;
        Int64 limit = 2 one;
        Int64 stride = 3 one;
    }
    "HloModuleProto" hlo_module {
        Text name = 1 one;
        Text entry_computation_name = 2 one;
        Message(hlo_computation) computations = 3 many;
        Message(program_shape) host_program_shape = 4 one;
        Int64 id = 5 one kept;
        Int64 entry_computation_id = 6 one;
        Message(hlo_schedule) schedule = 7 one;
        Message(hlo_input_output_alias) input_output_alias = 8 one;
        Message(cross_program_prefetch) cross_program_prefetches = 10 many kept;
        Bool is_dynamic = 11 one kept;
        Message(op_sharding) spmd_output_sharding = 12 one kept;
        Message(hlo_module_profile_info) profile_info = 13 many kept;
        Message(op_sharding) spmd_parameters_shardings = 14 many kept;
        Message(device_assignment) device_assignment = 15 one kept;
        Bool use_auto_spmd_partitioning = 16 one kept;
        Message(stack_frame_index) stack_frame_index = 17 one;
        Message(hlo_buffer_donor) buffer_donor = 18 one;
        Message(frontend_attributes) frontend_attributes = 19 one;
        Message(original_value_recovery_table) original_value_recovery_table = 20 one kept;
        Text device_type = 21 one kept;
        Bytes payloads = 22 many kept;
        Int64 pjrt_id = 23 maybe kept;
        Message(debug_attribute_table_entry) debug_attributes = 24 many kept;
        Bytes backend_config = 25 one kept;
    }
    "HloModuleProto.ProfileInfo" hlo_module_profile_info {
        Enum(MODULE_PROFILE_TYPE) profile_type = 1 one;
        Double relative_speedup = 2 one;
        Enum(PROFILE_SOURCE) profile_source = 3 one;
        Enum(COMPILATION_EVENT) compilation_event = 4 one;
        Text fingerprint = 5 one;
        Enum(PROFILE_GENERATION_STRATEGY) profile_generation_strategy = 6 one;
        Int64 original_changelist = 7 one;
        Int64 changelist = 8 one;
    }
    "HloScheduleProto" hlo_schedule {
        Message(sequences_entry) sequences = 1 many;
    }
    "HloScheduleProto.InstructionSequence" instruction_sequence {
        Int64 instruction_ids = 1 many;
    }
    "HloScheduleProto.SequencesEntry" sequences_entry {
        Int64 key = 1 one;
        Message(instruction_sequence) value = 2 one;
    }
    "ProgramShapeProto" program_shape {
        Message(shape) parameters = 1 many;
        Message(shape) result = 2 one;
        Text parameter_names = 3 many;
    }
    "StackFrameIndexProto" stack_frame_index {
        Text file_names = 1 many;
        Text function_names = 2 many;
        Message(file_location) file_locations = 3 many;
        Message(stack_frame) stack_frames = 4 many;
    }
    "StackFrameIndexProto.FileLocation" file_location {
        Int32 file_name_id = 1 one;
        Int32 function_name_id = 2 one;
        Int32 line = 3 one;
        Int32 column = 4 one;
        Int32 end_line = 5 one;
        Int32 end_column = 6 one;
    }
    "StackFrameIndexProto.StackFrame" stack_frame {
        Int32 file_location_id = 1 one;
        Int32 parent_frame_id = 2 one;
    }
}
