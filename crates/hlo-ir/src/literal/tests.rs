use super::*;
use crate::float::complex::Complex;
use crate::float::minifloat::Format;

fn parse(dtype: DType, dims: &[i64], text: &str) -> Result<ConstantValue, LiteralError> {
    let mut pos = 0;
    let value = parse_literal(text.as_bytes(), &mut pos, dtype, dims)?;
    assert_eq!(pos, text.len(), "{text}");
    Ok(value)
}

fn literal(dtype: DType, dims: &[i64], text: &str) -> Literal {
    match parse(dtype, dims, text) {
        Ok(ConstantValue::Array(literal)) => literal,
        other => panic!("{dtype}{dims:?} {text}: {other:?}"),
    }
}

fn text(literal: &Literal) -> String {
    let mut out = String::new();
    literal.write_text(&mut out);
    out
}

fn dtype(name: &str) -> DType {
    DType::from_name(name).unwrap()
}

/// What jaxlib's `to_string` prints after parsing: type, dims, input, output.
const XLA_TEXTS: &[(&str, &[i64], &str, &str)] = &[
    ("f32", &[], "1", "1"),
    ("f32", &[2], "{1,2}", "{1, 2}"),
    ("f32", &[2, 2], "{{1,2},{3,4}}", "{ { 1, 2 }, { 3, 4 } }"),
    ("s32", &[2, 2, 2], "{{{1,2},{3,4}},{{1,2},{3,4}}}", "{ { { 1, 2 }, { 3, 4 } }, { { 1, 2 }, { 3, 4 } } }"),
    (
        "f32",
        &[1, 2, 2, 2],
        "{{{{1,2},{3,4}},{{1,2},{3,4}}}}",
        "{ { /*i0=0*/ { /*i1=0*/ { 1, 2 }, { 3, 4 } }, { /*i1=1*/ { 1, 2 }, { 3, 4 } } } }",
    ),
    ("f32", &[1, 1, 1, 2, 1], "{{{{{1},{2}}}}}", "{ { /*i0=0*/ { /*i1=0*/ { /*i2=0*/ {1}, {2} } } } }"),
    ("f32", &[1, 1, 2, 0], "{{{{},{}}}}", "{ { /*i0=0*/ { /*i1=0*/ {}, {} } } }"),
    ("f32", &[1, 0, 2, 3], "{{}}", "{ { /*i0=0*/ } }"),
    ("f32", &[1, 2, 0, 3], "{{{},{}}}", "{ { /*i0=0*/ { /*i1=0*/ }, { /*i1=1*/ } } }"),
    ("f32", &[0], "{}", "{}"),
    ("f32", &[2, 0], "{{},{}}", "{ {}, {} }"),
    ("f32", &[0, 2], "{}", "{  }"),
    ("f32", &[2, 1, 0], "{{{}},{{}}}", "{ { {} }, { {} } }"),
    ("f32", &[0, 1, 2, 3], "{}", "{  }"),
    ("f32", &[1, 1, 1], "{{{1}}}", "{ { {1} } }"),
    ("f32", &[1, 1, 1, 1], "{ { { { 1 } } } }", "{ { /*i0=0*/ { /*i1=0*/ {1} } } }"),
    ("pred", &[], "true", "true"),
    ("pred", &[], "-1", "true"),
    ("pred", &[2, 2], "{{true,false},{1,0}}", "{ { 1, 0 }, { 1, 0 } }"),
    ("s4", &[2], "{-8,7}", "{-8, 7}"),
    ("u4", &[], "15", "15"),
    ("u64", &[], "18446744073709551615", "18446744073709551615"),
    ("s64", &[], "-9223372036854775808", "-9223372036854775808"),
    ("s2", &[2], "{1,-1}", "{1, -1}"),
    ("u32", &[], "-0", "0"),
    ("s32", &[], "007", "7"),
    ("f32", &[2], "{,1,,2}", "{1, 2}"),
    ("f32", &[2], "{1 2}", "{1, 2}"),
    ("f32", &[2], "{/*i=0*/1, /*x*/2}", "{1, 2}"),
    ("f32", &[2], "{1, // foo\n 2}", "{1, 2}"),
    ("f32", &[], "-inf", "-inf"),
    ("f32", &[], "nan(0x7f)", "nan(0x7f)"),
    ("f32", &[], "-nan(0x7f)", "-nan(0x7f)"),
    ("f32", &[], "nan(0x400000)", "nan"),
    ("f32", &[], "nan(0x7fffff)", "nan(0x7fffff)"),
    ("bf16", &[], "-nan(0x1)", "-nan(0x1)"),
    ("bf16", &[], "nan(0x40)", "nan"),
    ("f16", &[], "nan(0x3)", "nan(0x3)"),
    ("f8e5m2", &[], "nan(0x3)", "nan(0x3)"),
    ("f8e3m4", &[], "-nan(0x5)", "-nan(0x5)"),
    ("f8e4m3fn", &[], "-nan", "-nan"),
    ("f8e4m3fnuz", &[], "nan", "-nan"),
    ("f8e8m0fnu", &[], "-nan", "nan"),
    ("f4e2m1fn", &[], "nan", "-0.0"),
    ("f4e2m1fn", &[], "-nan", "0"),
    ("f4e2m1fn", &[], "inf", "6"),
    ("f8e4m3fn", &[], "inf", "nan"),
    ("f8e8m0fnu", &[], "inf", "nan"),
    ("f8e8m0fnu", &[], "1e-45", "5.9e-39"),
    ("f8e8m0fnu", &[], "3", "4"),
    ("f8e5m2", &[], "57344", "5.7e+04"),
    ("f8e4m3fn", &[], "464", "448"),
    ("f16", &[], "65519", "65504"),
    ("f16", &[], "0.1", "0.099976"),
    ("f16", &[], "0.00001", "1.0014e-05"),
    ("bf16", &[], "3.1415926", "3.141"),
    ("bf16", &[], "1e5", "9.984e+04"),
    ("f32", &[], "1e-60", "0"),
    ("f32", &[], "-1e-400", "-0.0"),
    ("f32", &[], "-.5", "-0.5"),
    ("f32", &[], "-5.e-3", "-0.005"),
    ("f32", &[], "1.e5", "100000"),
    ("f32", &[], "nan(0xAB)", "nan(0xab)"),
    ("f32", &[], "9223372036854775807", "9.22337204e+18"),
    ("c64", &[], "(1,-2)", "(1, -2)"),
    ("c64", &[2, 2], "{{(1,2),(3,4)},{(1,2),(3,4)}}", "{ { (1, 2), (3, 4) }, { (1, 2), (3, 4) } }"),
    ("c128", &[], "(1e-320,1e300)", "(9.99988867182683e-321, 1e+300)"),
];

#[test]
fn literals_print_as_xla_prints_them() {
    for &(name, dims, input, want) in XLA_TEXTS {
        let got = literal(dtype(name), dims, input);
        assert_eq!(text(&got), want, "{name}{dims:?} {input}");
        assert_eq!(literal(dtype(name), dims, want), got, "{name}{dims:?} {want} reads back");
    }
}

#[test]
fn negative_zero_is_what_xla_reads_and_prints_so_that_it_comes_back() {
    // XLA reads a token of digits alone as an integer, which has no negative zero.
    for dtype in [DType::F8E5M2, DType::BF16, DType::F16, DType::F32, DType::F64] {
        for zero in ["-0", "-00", "-00000000000000"] {
            assert_eq!(text(&literal(dtype, &[], zero)), "0", "{dtype} {zero}");
        }
        for zero in ["-0.0", "-0.", "-.0", "-0e0", "-0E-1", "-000.", "-1e-400"] {
            assert_eq!(text(&literal(dtype, &[], zero)), "-0.0", "{dtype} {zero}");
        }
    }
    assert_eq!(text(&literal(DType::F32, &[3], "{-0, -0.0, 0}")), "{0, -0.0, 0}");
    assert_eq!(text(&literal(DType::C64, &[], "(-0, -0.0)")), "(0, -0.0)");
    assert_eq!(text(&literal(DType::F8E4M3FNUZ, &[], "-0.0")), "0", "the type has no negative zero");
}

#[test]
fn malformed_literals_are_errors_with_position() {
    for (name, dims, input, offset) in [
        ("s4", &[][..], "8", 0),
        ("s4", &[], "-9", 0),
        ("u4", &[], "16", 0),
        ("u8", &[], "-1", 0),
        ("s8", &[2], "{1, 300}", 4),
        ("u64", &[], "18446744073709551616", 0),
        ("s64", &[], "9223372036854775808", 0),
        ("s32", &[], "1.5", 0),
        ("s32", &[], "nan", 0),
        ("s32", &[], "true", 0),
        ("s32", &[], "0x10", 0),
        ("s32", &[], "+1", 0),
        ("f32", &[], ".5", 0),
        ("f32", &[], "1e60", 0),
        ("f32", &[], "3.4028236e38", 0),
        ("f32", &[], "1e", 0),
        ("f32", &[], "Infinity", 0),
        ("f32", &[], "NaN", 0),
        ("f32", &[], "", 0),
        ("f32", &[], "nan(0x800000)", 3),
        ("f32", &[], "nan(0x0)", 3),
        ("f32", &[], "nan(1)", 3),
        ("f64", &[], "1e400", 0),
        ("f16", &[], "65520", 0),
        ("bf16", &[], "3.4e38", 0),
        ("f8e4m3fn", &[], "465", 0),
        ("f8e4m3fn", &[], "nan(0x1)", 0),
        ("f8e4m3", &[], "248", 0),
        ("f8e8m0fnu", &[], "0", 0),
        ("f8e8m0fnu", &[], "2.6e38", 0),
        ("f32", &[2], "{1,2,3}", 5),
        ("f32", &[2], "{1}", 2),
        ("f32", &[0], "1", 0),
        ("s4", &[3], "8", 0),
        ("f32", &[1_000_000_000_000], "1", 0),
        ("c64", &[2], "(1, 2)", 0),
        ("f32", &[], "{1}", 0),
        ("f32", &[2, 2], "{1,2,3,4}", 1),
        ("f32", &[2, 2], "{{1},{2,3,4}}", 3),
        ("f32", &[1, 2], "{{{1,2}}}", 2),
        ("f32", &[2, 2], "{{1,2},{...}}", 8),
        ("f32", &[0, 2], "{{}}", 1),
        ("f32", &[2], "{1,2", 4),
        ("f32", &[2], "{1, /* 2}", 4),
        ("f32", &[1_000_000_000_000], "{1}", 2),
        ("f32", &[-1], "{1}", 1),
        ("f32", &[], "{...}", 0),
        ("c64", &[], "(1)", 2),
        ("c64", &[], "1", 0),
        ("c64", &[], "(1e60,1)", 1),
        ("c64", &[], "(1,2,3)", 4),
    ] {
        let mut pos = 0;
        let result = parse_literal(input.as_bytes(), &mut pos, dtype(name), dims);
        match result {
            Err(error) => assert_eq!(error.offset, offset, "{name}{dims:?} {input}: {error}"),
            // A number may be followed by something that the caller will refuse.
            Ok(value) => assert!(input.starts_with("nan(1") && pos == 3, "{name}{dims:?} {input}: {value:?}"),
        }
    }
    let error = parse_scalar(DType::S8, "300").unwrap_err();
    assert_eq!(error.to_string(), "expected an integer from -128 to 127 (s8), found `300`");
    assert!(parse_scalar(DType::F32, "1 2").is_err());
}

#[test]
fn a_number_in_the_place_of_an_array_is_its_first_element() {
    assert_eq!(text(&literal(DType::F32, &[2, 3], "1.5")), "{ { 1.5, 0, 0 }, { 0, 0, 0 } }");
    assert_eq!(text(&literal(DType::Pred, &[3], "true")), "{1, 0, 0}");
    assert_eq!(text(&literal(DType::S4, &[1, 1], "-8")), "{ {-8} }");
    assert_eq!(text(&literal(DType::F8E8M0FNU, &[2], "1")), "{1, 5.9e-39}", "the type has no zero");
}

#[test]
fn arrays_without_elements_have_short_texts() {
    let empty = |dims: &[i64]| ConstantValue::Array(Literal::zeros(DType::S64, dims).unwrap());
    for (dims, expected) in [
        (&[3, 0][..], "{ {}, {}, {} }"),
        (&[0, 1 << 40], "{  }"),
        (&[1 << 20, 0], "{...}"),
        (&[1 << 40, 1 << 40, 0, 2], "{...}"),
    ] {
        let mut out = String::new();
        empty(dims).write_text(&mut out);
        assert_eq!(out, expected, "{dims:?}");
        assert_eq!(parse(DType::S64, dims, expected).unwrap(), empty(dims), "{dims:?}");
        assert_eq!(parse(DType::S64, dims, "{...}").unwrap(), empty(dims), "{dims:?}");
    }
}

#[test]
fn elided_and_tuple_values_print() {
    assert_eq!(parse(DType::F32, &[100], "{ ... }").unwrap(), ConstantValue::Elided);
    let value = ConstantValue::Tuple(vec![
        ConstantValue::Array(Literal::from_elem(1.0f32)),
        ConstantValue::Tuple(vec![ConstantValue::Array(Literal::from_elem(2i32)), ConstantValue::Tuple(Vec::new())]),
        ConstantValue::Elided,
    ]);
    let mut out = String::new();
    value.write_text(&mut out);
    assert_eq!(out, "( 1, ( 2, (  ) ), {...} )");
}

#[test]
fn damaged_texts_are_errors_or_values_but_never_panic() {
    let mut state = 11u64;
    let mut next = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    const BYTES: &[u8] = b"{}(),.-+0123456789naifetrux/* \n\xff";
    let (mut n_errors, mut n_values) = (0, 0);
    for round in 0..60_000 {
        let (name, dims, input, _) = XLA_TEXTS[round % XLA_TEXTS.len()];
        let mut bytes = input.as_bytes().to_vec();
        for _ in 0..=next(3) {
            let at = next(bytes.len() + 1);
            match next(3) {
                0 => bytes.insert(at, BYTES[next(BYTES.len())]),
                1 => bytes.truncate(at),
                _ if at < bytes.len() => bytes[at] = BYTES[next(BYTES.len())],
                _ => {}
            }
        }
        let mut pos = 0;
        match parse_literal(&bytes, &mut pos, dtype(name), dims) {
            Ok(ConstantValue::Array(value)) => {
                assert_eq!(Some(value.n_elems()), element_count(dims));
                n_values += 1;
            }
            Ok(_) => {}
            Err(error) => {
                assert!(error.offset <= bytes.len() && pos == 0, "{error:?}");
                n_errors += 1;
            }
        }
    }
    assert!(n_errors > 10_000 && n_values > 1000, "{n_errors} {n_values}");
}

#[test]
fn tuple_constants_parse_by_shape() {
    use crate::shape::{ArrayShape, Shape};
    let array = |name: &str, dims: &[i64]| {
        Shape::Array(ArrayShape { dtype: dtype(name), dims: dims.into(), dynamic: 0, layout: None })
    };
    let inner = Shape::Tuple(vec![array("f16", &[]), array("c64", &[2])]);
    let shape = Shape::Tuple(vec![array("s4", &[]), inner, array("f32", &[0]), Shape::Tuple(Vec::new())]);
    // As XLA prints it.
    let text = "( 1, ( nan, {(1, 2), (3, -nan)} ), {}, (  ) )";
    let mut pos = 0;
    let value = parse_constant(text.as_bytes(), &mut pos, &shape).unwrap();
    let mut out = String::new();
    value.write_text(&mut out);
    assert_eq!((out.as_str(), pos), (text, text.len()));
    for (text, offset) in [("( 1, ( nan ) )", 11), ("{...}", 0), ("( 1, ( nan, {...} ), {}, ( 1 ) )", 27)] {
        assert_eq!(parse_constant(text.as_bytes(), &mut 0, &shape).unwrap_err().offset, offset, "{text}");
    }
    assert!(parse_constant(b"1", &mut 0, &Shape::Token).is_err());
}

/// Every code of a type up to 16 bits, as a literal.
fn all_codes(dtype: DType) -> Literal {
    let n_codes = 1usize << dtype.bits();
    let bytes: Vec<u8> = match dtype.bits() {
        16 => (0..=u16::MAX).flat_map(u16::to_le_bytes).collect(),
        8 => (0..=u8::MAX).collect(),
        4 => (0..16u8).step_by(2).map(|code| code | (code + 1) << 4).collect(),
        2 => vec![0b1110_0100],
        _ => vec![0b10],
    };
    Literal::new(dtype, &[n_codes as i64], Buffer::from_packed_bytes(dtype, &bytes, n_codes)).unwrap()
}

#[test]
fn every_code_of_the_small_types_round_trips_through_text_and_bytes() {
    for &dtype in DType::ALL {
        if dtype.bits() > 16 || dtype == DType::Pred {
            continue;
        }
        let all = all_codes(dtype);
        assert_eq!(literal(dtype, all.dims(), &text(&all)), all, "{dtype}");
        let bytes = all.data().to_packed_bytes(dtype);
        assert_eq!(Buffer::from_packed_bytes(dtype, &bytes, all.n_elems()), *all.data());
        for i in 0..all.n_elems() {
            let mut copy = Literal::zeros(dtype, &[1]).unwrap();
            assert!(copy.set(0, all.get(i).unwrap()));
            let one = Buffer::from_packed_bytes(dtype, &bytes[i * dtype.bits() as usize / 8..], 1);
            if dtype.bits() >= 8 {
                assert_eq!(*copy.data(), one, "{dtype} {i:#x} through a scalar");
            }
            let token = text(&Literal::scalar(dtype, all.get(i).unwrap()));
            let read = Literal::scalar(dtype, parse_scalar(dtype, &token).unwrap());
            assert_eq!(read.data(), copy.data(), "{dtype} {token}");
        }
    }
}

#[test]
fn random_wide_floats_round_trip_through_text() {
    let mut state = 3u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state ^ state >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    };
    let doubles: Vec<f64> = (0..100_000).map(|_| f64::from_bits(next())).collect();
    let mut singles: Vec<f32> = (0..100_000).map(|_| f32::from_bits(next() as u32)).collect();
    singles.extend((0..1000).map(|_| f32::from_bits(0x7f80_0001 | next() as u32)));
    let complexes: Vec<_> = singles.chunks_exact(2).map(|pair| Complex::new(pair[0], pair[1])).collect();
    for all in [
        Literal::from_elems(&[100_000], doubles).unwrap(),
        Literal::from_elems(&[101, 10, 100], singles).unwrap(),
        Literal::from_elems(&[complexes.len() as i64], complexes).unwrap(),
    ] {
        assert_eq!(literal(all.dtype(), all.dims(), &text(&all)), all);
    }
}

#[test]
fn equality_and_hash_are_bitwise() {
    let scalar = |bits: u32| Literal::from_elem(f32::from_bits(bits));
    assert_ne!(scalar(0), scalar(0x8000_0000));
    assert_eq!(scalar(0x7f80_0001), scalar(0x7f80_0001));
    assert_ne!(scalar(0x7f80_0001), scalar(0x7fc0_0000));
    assert_ne!(literal(DType::S4, &[], "1"), literal(DType::S8, &[], "1"));
    let mut set = std::collections::HashSet::new();
    assert!(set.insert(scalar(0x7f80_0001)) && !set.insert(scalar(0x7f80_0001)) && set.insert(scalar(0xff80_0001)));
}

#[test]
fn bitcasts_keep_bits_low_part_first() {
    let bytes = literal(DType::U8, &[4], "{1, 2, 3, 64}");
    assert_eq!(bytes.bitcast_convert(DType::F32, &[]).unwrap().elems::<f32>().unwrap()[0].to_bits(), 0x4003_0201);
    let nibbles = bytes.bitcast_convert(DType::S4, &[4, 2]).unwrap();
    assert_eq!(text(&nibbles), "{ { 1, 0 }, { 2, 0 }, { 3, 0 }, { 0, 4 } }");
    assert_eq!(nibbles.bitcast_convert(DType::U8, &[4]).unwrap(), bytes);
    assert!(bytes.bitcast_convert(DType::F32, &[2]).is_err());
    let nan = Literal::from_elem(f32::from_bits(0xff80_0001));
    assert_eq!(nan.bitcast_convert(DType::U32, &[]).unwrap().get(0), Some(Scalar::Uint(0xff80_0001)));
}

#[test]
fn construction_checks_counts_and_storage() {
    assert!(Literal::new(DType::F32, &[2], Buffer::F32(vec![1.0])).is_err());
    assert!(Literal::new(DType::F32, &[1], Buffer::S32(vec![1])).is_err());
    assert!(Literal::new(DType::F32, &[-1], Buffer::F32(Vec::new())).is_err());
    assert!(Literal::zeros(DType::F32, &[i64::MAX, 8]).is_err());
    assert_eq!([element_count(&[i64::MAX, 8, 0]), element_count(&[0, -1])], [Some(0), None]);
    let wrapped = Literal::new(DType::S4, &[3], Buffer::S8(vec![8, -9, 7])).unwrap();
    assert_eq!(text(&wrapped), "{-8, 7, 7}");
    assert_eq!(wrapped.memory_bytes(), 3);
    assert_eq!(Format::of(DType::F8E5M2).map(Format::round_trip_digits), Some(2));
    assert!(Literal::splat(DType::F32, &[4], Scalar::Float(1.0)).unwrap().is_splat());
    assert!(!literal(DType::F32, &[2], "{0, -0.0}").is_splat());
}

/// Conversions done by XLA on the CPU: `= from bytes`, then `to bytes` lines; elements below 8 bits take a byte each.
const CONVERSIONS: &str = include_str!("../../tests/data/convert.txt");

fn literal_of_hex(dtype: DType, hex: &str) -> Literal {
    let bytes: Vec<u8> = hex
        .as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect();
    let n_elems = bytes.len() / (dtype.bits() as usize).div_ceil(8);
    let storage = match dtype {
        DType::S4 => DType::S8,
        DType::U4 => DType::U8,
        other => other,
    };
    Literal::new(dtype, &[n_elems as i64], Buffer::from_packed_bytes(storage, &bytes, n_elems)).unwrap()
}

#[test]
fn conversions_are_those_of_xla() {
    let same_float = |a: f64, b: f64| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
    // XLA's CPU backend runs with subnormals flushed to zero; we keep them, so they are not compared.
    let is_subnormal = |value: Scalar| matches!(value, Scalar::Float(x) if x != 0.0 && x.abs() < 1.2e-38);
    let (mut source, mut n_compared) = (Literal::from_elem(false), 0);
    for line in CONVERSIONS.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        if words[0] == "=" {
            source = literal_of_hex(dtype(words[1]), words[2]);
            continue;
        }
        let want = literal_of_hex(dtype(words[0]), words[1]);
        let got = source.convert(want.dtype());
        assert_eq!(got.n_elems(), want.n_elems());
        for i in 0..source.n_elems() {
            let input = source.get(i).unwrap();
            let same = match (got.get(i).unwrap(), want.get(i).unwrap()) {
                (Scalar::Float(a), Scalar::Float(b)) => same_float(a, b),
                (Scalar::Complex(a, x), Scalar::Complex(b, y)) => same_float(a, b) && same_float(x, y),
                (a, b) => a == b,
            };
            let what = format!("{} {input:?} to {}: {:?}", source.dtype(), want.dtype(), got.get(i));
            assert!(same || is_subnormal(input), "{what}, XLA {:?}", want.get(i));
            n_compared += 1;
        }
    }
    assert!(n_compared > 10_000, "{n_compared}");
    let complex = literal(DType::C64, &[2], "{(1.5, 2), (0, 1)}");
    assert_eq!(text(&complex.convert(DType::F32)), "{1.5, 0}", "the real part");
}
