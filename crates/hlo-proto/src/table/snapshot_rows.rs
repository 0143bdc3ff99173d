//! What wraps a module, and what a compiler adds to one.

messages! {
    "BufferAllocationProto" buffer_allocation {
        Int64 index = 1 one;
        Int64 size = 2 one;
        Bool is_thread_local = 3 one;
        Bool is_entry_computation_parameter = 5 one;
        Int64 parameter_number = 6 one;
        Bool maybe_live_out = 7 one;
        Int64 color = 8 one;
        Message(buffer_allocation_assigned) assigned = 9 many;
        Int64 parameter_shape_index = 10 many;
        Bool is_tuple = 11 one;
        Bool is_constant = 12 one;
        Bool is_parameter_aliased_with_output = 13 one;
    }
    "BufferAllocationProto.Assigned" buffer_allocation_assigned {
        Int64 logical_buffer_id = 1 one;
        Int64 offset = 2 one;
        Int64 size = 3 one;
        Enum(PRIMITIVE_TYPE) element_type = 4 one;
    }
    "BufferAssignmentProto" buffer_assignment {
        Message(logical_buffer) logical_buffers = 1 many;
        Message(buffer_assignment_buffer_alias) buffer_aliases = 2 many;
        Message(buffer_allocation) buffer_allocations = 3 many;
        Message(heap_simulator_trace) heap_simulator_traces = 4 many;
        Message(buffer_assignment_peak_buffers) peak_buffers = 5 many;
    }
    "BufferAssignmentProto.BufferAlias" buffer_assignment_buffer_alias {
        Int64 source_buffer_id = 1 one;
        Message(logical_buffer_location) location = 2 one;
    }
    "BufferAssignmentProto.PeakBuffers" buffer_assignment_peak_buffers {
        Int64 index = 1 one;
        Int64 logical_buffer_ids = 2 many;
    }
    "DebugAttributeTableEntryProto" debug_attribute_table_entry {
        Message(original_array) original_array = 1 one;
        Message(debug_attributes) debug_attributes = 2 many;
    }
    "DebugAttributesProto" debug_attributes {
        Enum(DEBUG_LOG_MODE) log_mode = 1 one;
        Int64 callback_id = 2 one;
        Int64 op_id = 3 one;
        Bool partitioned = 4 one;
        Text operands_sharding = 5 one;
        Message(x64_config) x64_config = 6 one;
    }
    "HeapSimulatorTrace" heap_simulator_trace {
        Message(heap_simulator_trace_event) events = 1 many;
        Bool whole_module_simulation = 2 one;
        Int64 buffer_allocation_index = 3 one;
    }
    "HeapSimulatorTrace.Event" heap_simulator_trace_event {
        Enum(HEAP_EVENT_KIND) kind = 1 one;
        Int64 buffer_id = 2 one;
        Text computation_name = 3 one;
        Text instruction_name = 4 one;
        Int64 share_with_canonical_id = 5 one;
    }
    "HloInputs" hlo_inputs {
        Message(literal) arguments = 1 many;
        Message(hlo_inputs_literal_descriptor) arguments_descriptors = 2 many;
    }
    "HloInputs.LiteralDescriptor" hlo_inputs_literal_descriptor {
        Int32 version = 1 one;
        Uint64 argument_size_bytes = 2 one;
    }
    "HloProto" hlo {
        Message(hlo_module) hlo_module = 1 one;
        Message(buffer_assignment) buffer_assignment = 3 one;
    }
    "HloSnapshot" hlo_snapshot {
        Message(hlo) hlo = 1 one;
        Message(literal) arguments = 2 many;
        Message(literal) result = 3 one;
        Text execution_platform = 4 one;
    }
    "HloUnoptimizedSnapshot" hlo_unoptimized_snapshot {
        Message(hlo_module) hlo_module = 1 one;
        Message(hlo_inputs) partitions = 2 many;
        Int32 version = 3 one;
    }
    "LogicalBufferProto" logical_buffer {
        Int64 id = 1 one;
        Int64 size = 2 one;
        Message(logical_buffer_location) defined_at = 3 one;
        Int64 color = 4 one;
    }
    "LogicalBufferProto.Location" logical_buffer_location {
        Text instruction_name = 2 one;
        Int64 shape_index = 3 many;
        Int64 instruction_id = 4 one;
    }
    "X64ConfigProto" x64_config {
        Text xprecision_64bit_fragment = 1 one;
        Text original_log_instruction_name = 2 one;
        Text xprecision_64bit_original_type = 3 one;
    }
}
