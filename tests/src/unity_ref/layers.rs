//! Layers of a forward pass: what they take, what they give, and in which dims they can be cut.

/// The most dims of a tensor.
pub(crate) const MOST_DIMS: usize = 4;
/// Where the degree of the sum stands in [`Degrees`].
pub(crate) const SUM: usize = MOST_DIMS;

/// Into how many parts a layer is cut: along each dim of its result, and along the sum that it takes.
pub(crate) type Degrees = [u16; MOST_DIMS + 1];

/// A layer that is not cut.
pub(crate) const WHOLE: Degrees = [1; MOST_DIMS + 1];

/// How many tasks a layer is.
pub(crate) fn n_tasks(degrees: &Degrees) -> u32 {
    degrees.iter().map(|&degree| u32::from(degree)).product()
}

/// What a layer does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LayerKind {
    /// What is read: in any form, for nothing.
    Input,
    /// An end of a part of a graph: a tensor that comes in, or is wanted, in a given form. Costs nothing.
    End,
    /// `[…, k] x [k, n]`.
    Linear {
        /// Whether a ReLU is fused.
        has_relu: bool,
    },
    /// `[n, h, w, k]`, a window of so many pixels, in groups.
    Conv {
        /// Pixels of the window.
        window: i64,
        /// Groups of channels.
        groups: i64,
        /// Whether a ReLU is fused.
        has_relu: bool,
    },
    /// Rows of a table by their indices.
    Embedding,
    /// `[b, s, d]`, with the four products around it.
    Attention {
        /// Heads.
        heads: i64,
    },
    /// A window of so many pixels.
    Pool {
        /// Pixels of the window.
        window: i64,
    },
    /// One element of each operand makes one of the result.
    Elementwise {
        /// Whether it is a ReLU.
        is_relu: bool,
    },
    /// Over the last dim, with a scale and a shift.
    Norm,
    /// Along the last dim.
    Concat,
    /// Over the last dim.
    Softmax,
    /// `[n, h, w, c] -> [n, h * w * c]`.
    Flat,
}

impl LayerKind {
    /// A product or a convolution with a ReLU where it had none, or without the one that it had; `None` of all others.
    pub(crate) fn with_relu(self, wanted: bool) -> Option<LayerKind> {
        match self {
            LayerKind::Linear { has_relu } => (has_relu != wanted).then_some(LayerKind::Linear { has_relu: wanted }),
            LayerKind::Conv { window, groups, has_relu } => {
                (has_relu != wanted).then_some(LayerKind::Conv { window, groups, has_relu: wanted })
            }
            LayerKind::Input
            | LayerKind::End
            | LayerKind::Embedding
            | LayerKind::Attention { .. }
            | LayerKind::Pool { .. }
            | LayerKind::Elementwise { .. }
            | LayerKind::Norm
            | LayerKind::Concat
            | LayerKind::Softmax
            | LayerKind::Flat => None,
        }
    }
}

/// Which cut of its layer cuts a dim of a weight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WeightCut {
    /// None.
    Whole,
    /// That of the last dim of the result.
    Result,
    /// That of the sum.
    Sum,
}

/// A weight: its name in the step, and its dims with what cuts them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Weight {
    /// Name.
    pub name: String,
    /// Sizes and cuts.
    pub dims: Vec<(i64, WeightCut)>,
}

impl Weight {
    pub(crate) fn n_elems(&self) -> f64 {
        self.dims.iter().map(|&(size, _)| size as f64).product()
    }
}

/// A layer.
#[derive(Clone, PartialEq, Debug)]
pub struct Layer {
    /// The same number in all graphs that have this layer.
    pub uid: u32,
    /// What it does.
    pub kind: LayerKind,
    /// The layers whose results it takes.
    pub operands: Vec<usize>,
    /// Of the result.
    pub dims: Vec<i64>,
    /// Elements along the sum that it takes; 1 where it takes none.
    pub n_summed: i64,
    /// Its weights.
    pub weights: Vec<Weight>,
    /// Operations of the forward pass.
    pub flops: f64,
}

impl Layer {
    /// Elements of the result.
    pub fn n_elems(&self) -> f64 {
        self.dims.iter().map(|&size| size as f64).product()
    }

    /// Whether it can be cut along a dim of its result, or along its sum.
    pub(crate) fn can_cut(&self, dim: usize) -> bool {
        let last = self.dims.len() - 1;
        if dim != SUM && dim > last {
            return false;
        }
        match self.kind {
            LayerKind::Input | LayerKind::End => false,
            LayerKind::Linear { has_relu } => dim != SUM || !has_relu,
            LayerKind::Conv { groups, has_relu, .. } => match dim {
                SUM => groups == 1 && !has_relu,
                _ => dim == 0 || dim == last,
            },
            LayerKind::Embedding => dim != SUM,
            LayerKind::Attention { .. } => dim == 0 || dim == SUM,
            LayerKind::Pool { .. } => dim == 0 || dim == last,
            LayerKind::Elementwise { .. } => dim != SUM,
            LayerKind::Norm | LayerKind::Concat | LayerKind::Softmax => dim < last,
            LayerKind::Flat => dim == 0,
        }
    }

    /// Whether the sizes take these degrees.
    pub(crate) fn takes(&self, degrees: &Degrees) -> bool {
        let divides = |size: i64, degree: u16| size % i64::from(degree) == 0;
        let last = self.dims.len() - 1;
        let of_dims = self.dims.iter().zip(degrees).all(|(&size, &degree)| divides(size, degree));
        let of_kind = match self.kind {
            LayerKind::Conv { groups, .. } if groups > 1 => divides(groups, degrees[last]),
            LayerKind::Attention { heads } => divides(heads, degrees[SUM]),
            LayerKind::Input
            | LayerKind::End
            | LayerKind::Linear { .. }
            | LayerKind::Conv { .. }
            | LayerKind::Embedding
            | LayerKind::Pool { .. }
            | LayerKind::Elementwise { .. }
            | LayerKind::Norm
            | LayerKind::Concat
            | LayerKind::Softmax
            | LayerKind::Flat => divides(self.n_summed, degrees[SUM]),
        };
        of_dims && of_kind
    }

    /// The degrees in which it takes an operand of this rank, and into how many replicas.
    pub(crate) fn wants(&self, degrees: &Degrees, rank: usize) -> ([u16; MOST_DIMS], u32) {
        let last = self.dims.len() - 1;
        let mut of_operand = [1; MOST_DIMS];
        match self.kind {
            LayerKind::Input
            | LayerKind::End
            | LayerKind::Pool { .. }
            | LayerKind::Elementwise { .. }
            | LayerKind::Norm
            | LayerKind::Concat
            | LayerKind::Softmax => of_operand.copy_from_slice(&degrees[..MOST_DIMS]),
            LayerKind::Linear { .. } => {
                of_operand[..last].copy_from_slice(&degrees[..last]);
                of_operand[rank - 1] = degrees[SUM];
            }
            LayerKind::Conv { groups, .. } => {
                of_operand[0] = degrees[0];
                of_operand[rank - 1] = if groups > 1 { degrees[last] } else { degrees[SUM] };
            }
            LayerKind::Embedding | LayerKind::Attention { .. } | LayerKind::Flat => of_operand[0] = degrees[0],
        }
        let n_parts: u32 = of_operand.iter().map(|&degree| u32::from(degree)).product();
        (of_operand, n_tasks(degrees) / n_parts)
    }

    /// Into how many parts a weight is cut.
    pub(crate) fn weight_parts(&self, degrees: &Degrees, weight: &Weight) -> Vec<u16> {
        let last = self.dims.len() - 1;
        let parts = |&(_, cut): &(i64, WeightCut)| match cut {
            WeightCut::Whole => 1,
            WeightCut::Result => degrees[last],
            WeightCut::Sum => degrees[SUM],
        };
        weight.dims.iter().map(parts).collect()
    }
}

/// Layers, each behind those that it takes.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct LayerGraph {
    /// The layers.
    pub layers: Vec<Layer>,
    n_weights: usize,
}

impl LayerGraph {
    /// Appends a layer, and gives its number.
    pub(crate) fn add(&mut self, kind: LayerKind, operands: &[usize], dims: &[i64]) -> usize {
        let number = self.layers.len();
        let n_elems: f64 = dims.iter().map(|&size| size as f64).product();
        let flops = match kind {
            LayerKind::Input | LayerKind::End | LayerKind::Embedding | LayerKind::Concat | LayerKind::Flat => 0.0,
            LayerKind::Elementwise { .. } => n_elems,
            LayerKind::Pool { window } => n_elems * window as f64,
            LayerKind::Norm | LayerKind::Softmax => 8.0 * n_elems,
            // Their own functions add them.
            LayerKind::Linear { .. } | LayerKind::Conv { .. } | LayerKind::Attention { .. } => 0.0,
        };
        let (operands, dims) = (operands.to_vec(), dims.to_vec());
        let uid = number as u32;
        self.layers.push(Layer { uid, kind, operands, dims, n_summed: 1, weights: Vec::new(), flops });
        number
    }

    fn dims(&self, layer: usize) -> Vec<i64> {
        self.layers[layer].dims.clone()
    }

    fn take_weight(&mut self, layer: usize, kind: &str, dims: &[(i64, WeightCut)]) {
        let name = format!("{kind}{:03}", self.n_weights);
        self.n_weights += 1;
        self.layers[layer].weights.push(Weight { name, dims: dims.to_vec() });
    }

    /// A tensor that comes in.
    pub fn input(&mut self, dims: &[i64]) -> usize {
        self.add(LayerKind::Input, &[], dims)
    }

    /// A product, with a bias or without.
    pub fn linear(&mut self, x: usize, width: i64, has_bias: bool) -> usize {
        let mut dims = self.dims(x);
        let n_summed = std::mem::replace(dims.last_mut().expect("at least one dim"), width);
        let layer = self.add(LayerKind::Linear { has_relu: false }, &[x], &dims);
        self.take_weight(layer, "dense", &[(n_summed, WeightCut::Sum), (width, WeightCut::Result)]);
        if has_bias {
            self.take_weight(layer, "bias", &[(width, WeightCut::Result)]);
        }
        self.layers[layer].n_summed = n_summed;
        self.layers[layer].flops = 2.0 * self.layers[layer].n_elems() * n_summed as f64;
        layer
    }

    /// A convolution: its window and its padding on each side, for height and width.
    pub fn conv(
        &mut self,
        x: usize,
        channels: i64,
        window: [i64; 2],
        stride: i64,
        padding: [i64; 2],
        groups: i64,
    ) -> usize {
        let of_x = self.dims(x);
        let side = |k: usize| (of_x[1 + k] + 2 * padding[k] - window[k]) / stride + 1;
        let n_pixels = window[0] * window[1];
        let n_summed = of_x[3] / groups;
        let kind = LayerKind::Conv { window: n_pixels, groups, has_relu: false };
        let layer = self.add(kind, &[x], &[of_x[0], side(0), side(1), channels]);
        let of_sum = if groups > 1 { WeightCut::Whole } else { WeightCut::Sum };
        let whole = |size: i64| (size, WeightCut::Whole);
        let dims = [whole(window[0]), whole(window[1]), (n_summed, of_sum), (channels, WeightCut::Result)];
        self.take_weight(layer, "conv", &dims);
        self.layers[layer].n_summed = n_summed;
        self.layers[layer].flops = 2.0 * self.layers[layer].n_elems() * (n_pixels * n_summed) as f64;
        layer
    }

    /// A window of `size` x `size`, and padding on each side.
    pub fn pool(&mut self, x: usize, size: i64, stride: i64, padding: i64) -> usize {
        let of_x = self.dims(x);
        let side = |n: i64| (n + 2 * padding - size) / stride + 1;
        self.add(LayerKind::Pool { window: size * size }, &[x], &[of_x[0], side(of_x[1]), side(of_x[2]), of_x[3]])
    }

    /// Rows of a table.
    pub fn embedding(&mut self, indices: usize, n_rows: i64, width: i64) -> usize {
        let mut dims = self.dims(indices);
        dims.push(width);
        let layer = self.add(LayerKind::Embedding, &[indices], &dims);
        self.take_weight(layer, "table", &[(n_rows, WeightCut::Whole), (width, WeightCut::Result)]);
        layer
    }

    /// Attention over `[b, s, d]`, without a mask.
    pub fn attention(&mut self, x: usize, heads: i64) -> usize {
        let dims = self.dims(x);
        let (tokens, sequence, width) = ((dims[0] * dims[1]) as f64, dims[1] as f64, dims[2]);
        let layer = self.add(LayerKind::Attention { heads }, &[x], &dims);
        for _ in 0..3 {
            self.take_weight(layer, "dense", &[(width, WeightCut::Whole), (width, WeightCut::Sum)]);
        }
        self.take_weight(layer, "dense", &[(width, WeightCut::Sum), (width, WeightCut::Whole)]);
        let width = width as f64;
        self.layers[layer].flops = tokens * (8.0 * width * width + 4.0 * sequence * width);
        layer
    }

    /// Scale and shift after the norm of the last dim.
    pub fn norm(&mut self, x: usize) -> usize {
        let dims = self.dims(x);
        let layer = self.add(LayerKind::Norm, &[x], &dims);
        let width = dims[dims.len() - 1];
        self.take_weight(layer, "scale", &[(width, WeightCut::Whole)]);
        self.take_weight(layer, "shift", &[(width, WeightCut::Whole)]);
        layer
    }

    /// An elementwise layer of all operands.
    pub fn elementwise(&mut self, operands: &[usize]) -> usize {
        let dims = self.dims(operands[0]);
        self.add(LayerKind::Elementwise { is_relu: false }, operands, &dims)
    }

    /// `max(x, 0)`.
    pub fn relu(&mut self, x: usize) -> usize {
        let dims = self.dims(x);
        self.add(LayerKind::Elementwise { is_relu: true }, &[x], &dims)
    }

    /// Along the last dim.
    pub fn concat(&mut self, operands: &[usize]) -> usize {
        let mut dims = self.dims(operands[0]);
        let last = dims.len() - 1;
        dims[last] = operands.iter().map(|&x| self.layers[x].dims[last]).sum();
        self.add(LayerKind::Concat, operands, &dims)
    }

    /// Over the last dim.
    pub fn softmax(&mut self, x: usize) -> usize {
        let dims = self.dims(x);
        self.add(LayerKind::Softmax, &[x], &dims)
    }

    /// All dims but the first one as one.
    pub fn flat(&mut self, x: usize) -> usize {
        let dims = self.dims(x);
        self.add(LayerKind::Flat, &[x], &[dims[0], dims[1..].iter().product()])
    }

    /// How many weights there are, and their elements.
    pub fn weights(&self) -> (usize, f64) {
        let all = || self.layers.iter().flat_map(|layer| &layer.weights);
        (all().count(), all().map(Weight::n_elems).sum())
    }
}
