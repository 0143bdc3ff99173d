//! Shapes, literals, shardings, groups of devices, and metadata.

messages! {
    "AxisRefProto" axis_ref {
        Int64 mesh_axis_index = 1 one;
        Message(sub_axis) sub_axis_info = 2 maybe;
    }
    "AxisRefProto.SubAxis" sub_axis {
        Int64 pre_size = 1 one;
        Int64 size = 2 one;
    }
    "CollectiveDeviceListProto" collective_device_list {
        Message(replica_group) replica_groups = 1 many;
        Message(iota_replica_group_list) iota_replica_group_list = 2 one;
    }
    "FrontendAttributes" frontend_attributes {
        Message(map_entry) map = 1 many;
    }
    "FrontendAttributes.MapEntry" map_entry {
        Text key = 1 one;
        Text value = 2 one;
    }
    "IotaReplicaGroupListProto" iota_replica_group_list {
        Int64 num_replica_groups = 1 one;
        Int64 num_devices_per_group = 2 one;
        Int64 iota_reshape_dims = 3 many;
        Int32 iota_transpose_perm = 4 many;
    }
    "LayoutProto" layout {
        Int64 minor_to_major = 1 many;
        Message(tile) tiles = 6 many;
        Int64 element_size_in_bits = 7 one;
        Int64 memory_space = 8 one;
        Enum(DIM_LEVEL_TYPE) dim_level_types = 9 many;
        Message(shape) physical_shape = 10 one kept;
        Enum(PRIMITIVE_TYPE) index_primitive_type = 11 one;
        Enum(PRIMITIVE_TYPE) pointer_primitive_type = 12 one;
        Bool dim_unique = 13 many;
        Bool dim_ordered = 14 many;
        Int64 dynamic_shape_metadata_prefix_bytes = 15 one;
        Int64 tail_padding_alignment_in_elements = 16 one;
        Message(split_config) split_configs = 17 many;
    }
    "LiteralProto" literal {
        Message(shape) shape = 1 one;
        Bool preds = 2 many;
        Bytes u8s = 3 one;
        Int32 s32s = 4 many;
        Int64 s64s = 5 many;
        Uint32 u32s = 6 many;
        Uint64 u64s = 7 many;
        Float f32s = 8 many;
        Double f64s = 9 many;
        Message(literal) tuple_literals = 10 many;
        Bytes f16s = 11 one;
        Float c64s = 12 many;
        Bytes bf16s = 13 one;
        Int64 sparse_indices = 14 many kept;
        Bytes s8s = 15 one;
        Bytes u16s = 16 one;
        Bytes s16s = 17 one;
        Double c128s = 18 many;
        Bytes f8e5m2s = 19 one;
        Bytes f8e4m3fns = 20 one;
        Bytes s4s = 21 one;
        Bytes u4s = 22 one;
        Bytes f8e4m3b11fnuzs = 23 one;
        Bytes f8e5m2fnuzs = 24 one;
        Bytes f8e4m3fnuzs = 25 one;
        Bytes s2s = 26 one;
        Bytes u2s = 27 one;
        Bytes f8e4m3s = 28 one;
        Bytes f8e3m4s = 29 one;
        Bytes s1s = 30 one;
        Bytes u1s = 31 one;
        Bytes f4e2m1fns = 32 one;
        Bytes f8e8m0fnus = 33 one;
        Int32 dynamic_sizes = 34 many kept;
        Bytes f6e3m2fns = 35 one;
        Bytes f6e2m3fns = 36 one;
    }
    "MeshAxesReplicaGroupListProto" mesh_axes_replica_group_list {
        Message(mesh) mesh = 1 one;
        Message(axis_ref) axes = 2 many;
    }
    "MeshProto" mesh {
        Message(mesh_axis) axes = 1 many;
        Int64 device_ids = 2 many;
        Message(iota_transform) iota_transform = 3 maybe;
    }
    "MeshProto.IotaTransform" iota_transform {
        Int64 reshape_dims = 1 many;
        Int64 transpose_perm = 2 many;
    }
    "MeshProto.MeshAxis" mesh_axis {
        Text name = 1 one;
        Int64 size = 2 one;
    }
    "NamedShardingProto" named_sharding {
        Message(mesh) mesh = 2 one;
        Message(dimension_sharding) dim_shardings = 3 many;
        Message(axis_ref) replicated_axes = 4 many;
        Message(axis_ref) unreduced_axes = 5 many;
        Message(op_metadata) metadata = 6 many;
        Message(axis_ref) manual_axes = 7 many;
        Enum(REDUCTION_OP) reduction_op = 8 one;
    }
    "NamedShardingProto.DimensionSharding" dimension_sharding {
        Message(axis_ref) axes = 1 many;
        Bool is_closed = 2 one;
    }
    "OpMetadata" op_metadata {
        Text op_type = 1 one;
        Text op_name = 2 one;
        Text source_file = 3 one;
        Int32 source_line = 4 one;
        Enum(PROFILE_TYPE) profile_type = 5 many;
        Int64 size_of_generated_code_in_bytes = 8 one;
        Int64 size_of_memory_working_set_in_bytes = 9 one kept;
        Message(op_metadata_profile_info) profile_info = 10 one kept;
        Text deduplicated_name = 12 one;
        Int32 stack_frame_id = 15 one;
        Text scheduling_name = 16 one;
        Int32 source_end_line = 17 one;
        Int32 source_column = 18 one;
        Int32 source_end_column = 19 one;
        Message(payload) metadata_payload = 20 one;
    }
    "OpMetadata.ProfileInfo" op_metadata_profile_info {
        Enum(PROFILE_TYPE) profile_type = 1 many;
        Double relative_speedup = 2 one;
        Enum(PROFILE_SOURCE) profile_source = 3 one;
        Enum(COMPILATION_EVENT) compilation_event = 4 one;
        Enum(PROFILE_GENERATION_STRATEGY) profile_generation_strategy = 5 one;
    }
    "OpSharding" op_sharding {
        Enum(SHARDING_TYPE) r#type = 1 one;
        Message(shape) tile_shape = 2 one kept;
        Int64 tile_assignment_dimensions = 3 many;
        Int64 tile_assignment_devices = 4 many;
        Message(op_sharding) tuple_shardings = 5 many;
        Bool replicate_on_last_tile_dim = 6 one;
        Message(op_metadata) metadata = 7 many;
        Enum(SHARDING_TYPE) last_tile_dims = 8 many;
        Int64 iota_reshape_dims = 9 many;
        Int32 iota_transpose_perm = 10 many;
        Bool is_shard_group = 11 one;
        Int64 shard_group_id = 12 one;
        Enum(SHARD_GROUP_TYPE) shard_group_type = 13 one;
        Message(named_sharding) named_sharding = 14 maybe;
    }
    "Payload" payload {
        Bytes value = 1 either;
        Int64 id = 2 either;
    }
    "ReplicaGroup" replica_group {
        Int64 replica_ids = 1 many;
    }
    "ShapeProto" shape {
        Enum(PRIMITIVE_TYPE) element_type = 2 one;
        Int64 dimensions = 3 many;
        Message(shape) tuple_shapes = 4 many;
        Message(layout) layout = 5 one;
        Bool is_dynamic_dimension = 6 many;
    }
    "SourceTarget" source_target {
        Int64 source = 1 one;
        Int64 target = 2 one;
    }
    "SplitConfigProto" split_config {
        Int64 dimension = 1 one;
        Int64 split_indices = 2 many;
    }
    "TileProto" tile {
        Int64 dimensions = 1 many;
    }
}
