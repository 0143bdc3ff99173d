//! Enums: the names of values, and how HLO text says them.

use super::Enum;

enums! {
    "CompilationEvent" COMPILATION_EVENT "" exact {
        0 "COMPILATION_EVENT_UNKNOWN_EVENT";
        1 "COMPILATION_EVENT_FIRST_COMPILATION";
        2 "COMPILATION_EVENT_RECOMPILATION";
    }
    "ConvolutionKind" CONVOLUTION_KIND "CONVOLUTION_KIND_" small {
        0 "CONVOLUTION_KIND_UNSET";
        1 "CONVOLUTION_KIND_FPROP";
        2 "CONVOLUTION_KIND_DGRAD";
        3 "CONVOLUTION_KIND_WGRAD";
    }
    "CustomCallApiVersion" CUSTOM_CALL_API_VERSION "" exact {
        0 "API_VERSION_UNSPECIFIED";
        1 "API_VERSION_ORIGINAL";
        2 "API_VERSION_STATUS_RETURNING";
        3 "API_VERSION_STATUS_RETURNING_UNIFIED";
        4 "API_VERSION_TYPED_FFI";
    }
    "CustomCallSchedule" CUSTOM_CALL_SCHEDULE "" exact {
        0 "SCHEDULE_NONE";
        1 "SCHEDULE_LATEST";
        2 "SCHEDULE_EARLIEST";
    }
    "DebugAttributesProto.DebugLogModeProto" DEBUG_LOG_MODE "" exact {
        0 "NONE";
        1 "DEFAULT";
        2 "FUSION_DEBUGGER";
        3 "NO_FUSION";
        4 "GUARANTEED";
    }
    "DimLevelType" DIM_LEVEL_TYPE "" exact {
        0 "DIM_DENSE";
        1 "DIM_COMPRESSED";
        2 "DIM_SINGLETON";
        3 "DIM_LOOSE_COMPRESSED";
    }
    "FftType" FFT_TYPE "" exact {
        0 "FFT";
        1 "IFFT";
        2 "RFFT";
        3 "IRFFT";
    }
    "HeapSimulatorTrace.Event.Kind" HEAP_EVENT_KIND "" exact {
        0 "ALLOC";
        1 "FREE";
        2 "SHARE_WITH";
    }
    "HloModuleProto.ProfileType" MODULE_PROFILE_TYPE "" exact {
        0 "INVALID";
        1 "FLAG";
        2 "FUSION";
        3 "LAYOUT";
        4 "DOT";
        5 "FLAGNET";
        6 "SHARDING";
        7 "SCHEDULE";
    }
    "Kind" ALIAS_KIND "" exact {
        0 "UNDEFINED_ALIAS";
        1 "MAY_ALIAS";
        2 "MUST_ALIAS";
    }
    "NamedShardingProto.ReductionOpProto" REDUCTION_OP "" small {
        0 "SUM";
        1 "MAX";
        2 "MIN";
    }
    "OpSharding.ShardGroupType" SHARD_GROUP_TYPE "" exact {
        0 "AS";
        1 "LIKE";
    }
    "OpSharding.Type" SHARDING_TYPE "" small {
        0 "REPLICATED";
        1 "MAXIMAL";
        2 "TUPLE";
        3 "OTHER";
        4 "MANUAL";
        5 "UNKNOWN";
        6 "UNREDUCED";
    }
    "PaddingType" PADDING_TYPE "" exact {
        0 "PADDING_INVALID";
        1 "PADDING_VALID";
        2 "PADDING_SAME";
    }
    "PrecisionConfig.Algorithm" ALGORITHM "ALG_" small {
        0 "ALG_UNSET";
        1 "ALG_DOT_ANY_F8_ANY_F8_F32";
        2 "ALG_DOT_ANY_F8_ANY_F8_F32_FAST_ACCUM";
        3 "ALG_DOT_F16_F16_F16";
        4 "ALG_DOT_F16_F16_F32";
        5 "ALG_DOT_BF16_BF16_BF16";
        6 "ALG_DOT_BF16_BF16_F32";
        7 "ALG_DOT_BF16_BF16_F32_X3";
        8 "ALG_DOT_BF16_BF16_F32_X6";
        9 "ALG_DOT_TF32_TF32_F32";
        10 "ALG_DOT_TF32_TF32_F32_X3";
        11 "ALG_DOT_F32_F32_F32";
        12 "ALG_DOT_F64_F64_F64";
        13 "ALG_DOT_BF16_BF16_F32_X9";
        14 "ALG_DOT_BF16_BF16_FP8X3";
        15 "ALG_DOT_BF16_BF16_FP8X4";
    }
    "PrecisionConfig.Precision" PRECISION "" small {
        0 "DEFAULT";
        1 "HIGH";
        2 "HIGHEST";
    }
    "PrimitiveType" PRIMITIVE_TYPE "" small {
        0 "PRIMITIVE_TYPE_INVALID";
        1 "PRED";
        2 "S8";
        3 "S16";
        4 "S32";
        5 "S64";
        6 "U8";
        7 "U16";
        8 "U32";
        9 "U64";
        10 "F16";
        11 "F32";
        12 "F64";
        13 "TUPLE";
        14 "OPAQUE_TYPE";
        15 "C64";
        16 "BF16";
        17 "TOKEN";
        18 "C128";
        19 "F8E5M2";
        20 "F8E4M3FN";
        21 "S4";
        22 "U4";
        23 "F8E4M3B11FNUZ";
        24 "F8E5M2FNUZ";
        25 "F8E4M3FNUZ";
        26 "S2";
        27 "U2";
        28 "F8E4M3";
        29 "F8E3M4";
        30 "S1";
        31 "U1";
        32 "F4E2M1FN";
        33 "F8E8M0FNU";
        34 "BUFFER";
        35 "F6E3M2FN";
        36 "F6E2M3FN";
    }
    "ProfileGenerationStrategy" PROFILE_GENERATION_STRATEGY "" exact {
        0 "PROFILE_GENERATION_STRATEGY_UNKNOWN";
        1 "PROFILE_GENERATION_STRATEGY_GA";
        2 "PROFILE_GENERATION_STRATEGY_FANTA";
        3 "PROFILE_GENERATION_STRATEGY_CFO";
        4 "PROFILE_GENERATION_STRATEGY_EXHAUSTIVE";
        5 "PROFILE_GENERATION_STRATEGY_LCM_GNN";
        6 "PROFILE_GENERATION_STRATEGY_LCM_MOE";
    }
    "ProfileSource" PROFILE_SOURCE "" exact {
        0 "PROFILE_SOURCE_UNKNOWN_SOURCE";
        1 "PROFILE_SOURCE_EMBEDDED";
        2 "PROFILE_SOURCE_REMOTE";
    }
    "ProfileType" PROFILE_TYPE "" exact {
        0 "INVALID";
        1 "WINDOW";
        2 "FLAG";
        3 "INTEGER";
    }
    "RandomAlgorithm" RANDOM_ALGORITHM "" small {
        0 "RNG_DEFAULT";
        1 "RNG_THREE_FRY";
        2 "RNG_PHILOX";
    }
    "RandomDistribution" RANDOM_DISTRIBUTION "" small {
        0 "RNG_INVALID";
        1 "RNG_UNIFORM";
        2 "RNG_NORMAL";
    }
    "ResultAccuracy.Mode" ACCURACY_MODE "" small {
        0 "DEFAULT";
        1 "HIGHEST";
    }
    "TriState" TRI_STATE "" exact {
        0 "TRI_STATE_UNSPECIFIED";
        1 "TRI_STATE_TRUE";
        2 "TRI_STATE_FALSE";
    }
    "TriangularSolveOptions.Transpose" TRANSPOSE "" exact {
        0 "TRANSPOSE_INVALID";
        1 "NO_TRANSPOSE";
        2 "TRANSPOSE";
        3 "ADJOINT";
    }
}
