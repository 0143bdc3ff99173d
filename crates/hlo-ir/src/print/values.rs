//! One print rule per type of attribute value.

use super::shapes::write_ints;
use super::strings::write_quoted;
use super::{Printer, shardings};
use crate::attrs::{
    Attrs, ConvDims, DomainSharding, FieldRef, OperandAlias, PadDim, Presence, SliceDim, Window, WindowDim, Word,
    is_default,
};
use crate::float::decimal::{write_f32, write_i64};
use crate::groups::ReplicaGroups;
use crate::module::InstId;
use crate::op::Opcode;
use crate::shape::Dims;

impl Printer<'_> {
    /// Appends `, key=value` for every attribute of the instruction's format.
    pub(super) fn attributes(&mut self, id: InstId) {
        let module = self.module;
        let inst = module.inst(id);
        if matches!(inst.attrs, Attrs::Plain | Attrs::Constant(_)) || inst.opcode == Opcode::AsyncDone {
            return;
        }
        // An update has aliases alone: what runs is said at its start.
        let is_sugar = inst.opcode == Opcode::AsyncStart && super::async_sugar::wrapped_op(module, id).is_some();
        let operand = inst.operands.first().and_then(|&operand| module.shape(operand).as_array()).map(|a| a.dtype);
        inst.attrs.for_each_field(&mut |key, presence, field| {
            let is_parameter_number = matches!(inst.attrs, Attrs::Parameter(_)) && key == "number";
            let is_folded = is_sugar && matches!(key, "calls" | "output_to_operand_aliasing");
            if is_parameter_number || is_folded || (presence == Presence::IfSet && is_default(key, field, operand)) {
                return;
            }
            self.out.push_str(", ");
            self.out.push_str(key);
            self.out.push('=');
            self.value(field);
        });
    }

    /// Appends one value.
    pub(super) fn value(&mut self, field: FieldRef<'_>) {
        match field {
            FieldRef::Int(value) => write_i64(*value, &mut self.out),
            FieldRef::OptInt(value) => write_i64(value.unwrap_or_default(), &mut self.out),
            FieldRef::Bool(value) => self.boolean(*value),
            FieldRef::OptBool(value) => self.boolean(value.unwrap_or_default()),
            FieldRef::Float(value) => write_f32(value.get(), &mut self.out),
            FieldRef::Dims(dims) => self.ints(dims),
            FieldRef::Bools(values) => self.list(values, ",", |p, &value| p.boolean(value)),
            FieldRef::Text(text) => write_quoted(&text.0, &mut self.out),
            FieldRef::OptText(text) => {
                write_quoted(text.as_ref().map(|text| text.0.as_str()).unwrap_or_default(), &mut self.out);
            }
            FieldRef::Word(word) => self.out.push_str(word.as_str()),
            FieldRef::Words(words) => self.list(words, ",", |p, word: &Word| p.out.push_str(word.as_str())),
            FieldRef::Comp(comp) => {
                if let Some(comp) = comp {
                    self.comp_name(*comp);
                }
            }
            FieldRef::Comps(comps) => self.list(comps, ", ", |p, &comp| p.comp_name(comp)),
            FieldRef::Shape(shape) => {
                if let Some(shape) = shape {
                    self.shapes.write(self.module, *shape, &mut self.out);
                }
            }
            FieldRef::Shapes(shapes) => {
                let shapes = shapes.as_deref().unwrap_or_default();
                self.list(shapes, ", ", |p, &shape| p.shapes.write(p.module, shape, &mut p.out));
            }
            FieldRef::Slice(dims) => self.slice(dims),
            FieldRef::Padding(dims) => self.padding(dims),
            FieldRef::Window(window) => self.window(window),
            FieldRef::ConvDims(dims) => self.conv_dims(dims),
            FieldRef::Groups(groups) => self.groups(groups),
            FieldRef::Pairs(pairs) => self.list(pairs, ",", |p, &(source, target)| p.ints(&[source, target])),
            FieldRef::OutputAliases(aliases) => self.list(aliases, ", ", |p, alias| p.operand_alias(alias)),
            FieldRef::DomainSharding(domain) => {
                if let Some(domain) = domain {
                    self.domain(domain);
                }
            }
            FieldRef::Sharding(sharding) => {
                if let Some(sharding) = sharding {
                    shardings::write_sharding(sharding, &mut self.out);
                }
            }
            FieldRef::Comparison(comparison) => self.out.push_str(comparison.name()),
            FieldRef::Raw(raw) => self.out.push_str(&raw.0),
            FieldRef::RawLiteral(raw) => self.out.push_str(&raw.0),
        }
    }

    /// Appends `{item,item}` with `separator` between.
    pub(super) fn list<T>(&mut self, items: &[T], separator: &str, mut write: impl FnMut(&mut Self, &T)) {
        self.out.push('{');
        for (i, item) in items.iter().enumerate() {
            self.separator(i, separator);
            write(self, item);
        }
        self.out.push('}');
    }

    /// Appends `{0,1}`.
    pub(super) fn ints(&mut self, values: &[i64]) {
        self.out.push('{');
        write_ints(values, &mut self.out);
        self.out.push('}');
    }

    pub(super) fn boolean(&mut self, value: bool) {
        self.out.push_str(if value { "true" } else { "false" });
    }

    fn groups(&mut self, groups: &ReplicaGroups) {
        if self.expand_mesh_groups
            && let ReplicaGroups::Mesh(mesh) = groups
            && let Some(lists) = mesh.expand()
        {
            return shardings::write_group_lists(&lists, &mut self.out);
        }
        shardings::write_groups(groups, &mut self.out);
    }

    /// Appends `{[0:1], [1:5:2]}`; strides stand everywhere or nowhere.
    fn slice(&mut self, dims: &[SliceDim]) {
        let has_strides = dims.iter().any(|dim| dim.stride != 1);
        self.list(dims, ", ", |p, dim| {
            p.out.push('[');
            write_i64(dim.start, &mut p.out);
            p.out.push(':');
            write_i64(dim.limit, &mut p.out);
            if has_strides {
                p.out.push(':');
                write_i64(dim.stride, &mut p.out);
            }
            p.out.push(']');
        });
    }

    /// Appends `0_0x1_2`; interior padding stands everywhere or nowhere.
    fn padding(&mut self, dims: &[PadDim]) {
        let has_interior = dims.iter().any(|dim| dim.interior != 0);
        for (i, dim) in dims.iter().enumerate() {
            self.separator(i, "x");
            self.pad_pair(dim.low, dim.high);
            if has_interior {
                self.out.push('_');
                write_i64(dim.interior, &mut self.out);
            }
        }
    }

    fn pad_pair(&mut self, low: i64, high: i64) {
        write_i64(low, &mut self.out);
        self.out.push('_');
        write_i64(high, &mut self.out);
    }

    /// Appends `{size=3x3 stride=2x2 pad=0_1x0_1 …}`; a part at its default in every dim is left out.
    fn window(&mut self, window: &Window) {
        let default = WindowDim::default();
        let dims = window.dims.as_slice();
        self.out.push('{');
        self.window_part("size=", dims, |dim| dim.size);
        if dims.iter().any(|dim| dim.stride != default.stride) {
            self.window_part(" stride=", dims, |dim| dim.stride);
        }
        if dims.iter().any(|dim| dim.pad_low != 0 || dim.pad_high != 0) {
            self.out.push_str(" pad=");
            for (i, dim) in dims.iter().enumerate() {
                self.separator(i, "x");
                self.pad_pair(dim.pad_low, dim.pad_high);
            }
        }
        if dims.iter().any(|dim| dim.base_dilation != default.base_dilation) {
            self.window_part(" lhs_dilate=", dims, |dim| dim.base_dilation);
        }
        if dims.iter().any(|dim| dim.window_dilation != default.window_dilation) {
            self.window_part(" rhs_dilate=", dims, |dim| dim.window_dilation);
        }
        if dims.iter().any(|dim| dim.is_reversed) {
            self.window_part(" rhs_reversal=", dims, |dim| i64::from(dim.is_reversed));
        }
        self.out.push('}');
    }

    fn window_part(&mut self, key: &str, dims: &[WindowDim], of: impl Fn(&WindowDim) -> i64) {
        self.out.push_str(key);
        for (i, dim) in dims.iter().enumerate() {
            self.separator(i, "x");
            write_i64(of(dim), &mut self.out);
        }
    }

    /// Appends `b01f_01io->b01f`.
    fn conv_dims(&mut self, dims: &ConvDims) {
        let [input_unknown, kernel_unknown, output_unknown] = &dims.unknown;
        let input = [(b'b', dims.input_batch), (b'f', dims.input_feature)];
        self.dim_labels(input, &dims.input_spatial, input_unknown);
        self.out.push('_');
        let kernel = [(b'i', dims.kernel_input_feature), (b'o', dims.kernel_output_feature)];
        self.dim_labels(kernel, &dims.kernel_spatial, kernel_unknown);
        self.out.push_str("->");
        let output = [(b'b', dims.output_batch), (b'f', dims.output_feature)];
        self.dim_labels(output, &dims.output_spatial, output_unknown);
    }

    fn dim_labels(&mut self, letters: [(u8, i64); 2], spatial: &Dims, unknown: &Dims) {
        let mut labels: Vec<(i64, u8)> = letters.iter().map(|&(letter, dim)| (dim, letter)).collect();
        labels.extend(spatial.iter().zip(b'0'..=b'9').map(|(&dim, digit)| (dim, digit)));
        labels.extend(unknown.iter().map(|&dim| (dim, b'?')));
        labels.sort();
        self.out.extend(labels.iter().map(|&(_, label)| char::from(label)));
    }

    /// Appends `{0}: (1, {})`.
    fn operand_alias(&mut self, alias: &OperandAlias) {
        self.ints(&alias.output_index);
        self.out.push_str(": (");
        write_i64(alias.operand, &mut self.out);
        self.out.push_str(", ");
        self.ints(&alias.operand_index);
        self.out.push(')');
    }

    fn domain(&mut self, domain: &DomainSharding) {
        self.out.push_str("{kind=");
        write_quoted(&domain.kind, &mut self.out);
        self.out.push_str(", entry=");
        shardings::write_sharding(&domain.entry, &mut self.out);
        self.out.push_str(", exit=");
        shardings::write_sharding(&domain.exit, &mut self.out);
        self.out.push('}');
    }
}
