//! Loading of weights from safetensors files into MLX arrays. `rooflet_artifact::model_dir` has
//! validated the headers of the files, so loading normally fails only if a file cannot be read.

use std::collections::{BTreeMap, HashMap};

use camino::{Utf8Path, Utf8PathBuf};
use mlx_rs::error::IoError;
use mlx_rs::ops::indexing::take_axis;
use mlx_rs::ops::{arange, split_equal, stack, swap_axes};
use mlx_rs::{Array, Dtype};

use rooflet_model::checkpoint::{Step, TensorSource};
use rooflet_model::config::FloatType;

/// Tensors by name, loaded lazily: MLX reads a tensor when it is evaluated.
#[derive(Debug)]
pub struct Weights {
    tensors: HashMap<String, Array>,
    compute: Dtype,
    /// Tensors that are derived from stored tensors.
    sources: BTreeMap<String, TensorSource>,
    /// Number of pending derived tensors by stored tensor.
    users: HashMap<String, usize>,
}

/// Failure to load weights.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("failed to read weights from `{path}`")]
    Read {
        path: Utf8PathBuf,
        #[source]
        err: IoError,
    },
    #[error("tensor `{tensor}` is not in the weights")]
    MissingTensor { tensor: String },
    #[error("failed to convert tensor `{tensor}`")]
    Convert {
        tensor: String,
        #[source]
        err: mlx_rs::error::Exception,
    },
    #[error("failed to read the weights")]
    Evaluate {
        #[source]
        err: mlx_rs::error::Exception,
    },
}

impl LoadError {
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Read { .. } | Self::Evaluate { .. } => "ReadFailed",
            Self::MissingTensor { .. } | Self::Convert { .. } => "InvalidWeights",
        }
    }
}

pub fn dtype(element: FloatType) -> Dtype {
    match element {
        FloatType::F32 => Dtype::Float32,
        FloatType::F16 => Dtype::Float16,
        FloatType::BF16 => Dtype::Bfloat16,
    }
}

/// Returns a constant of an element type, evaluated on the device.
pub fn constant(value: f32, dtype: Dtype) -> mlx_rs::error::Result<Array> {
    let constant = Array::from_f32(value).as_dtype(dtype)?;
    constant.eval()?;
    Ok(constant)
}

impl Weights {
    /// Opens the files. Float tensors are converted to `compute`.
    pub fn open<P: AsRef<Utf8Path>>(files: &[P], compute: FloatType) -> Result<Self, LoadError> {
        let mut tensors = HashMap::new();
        for path in files {
            let path = path.as_ref();
            let loaded = Array::load_safetensors(path.as_std_path()).map_err(|err| LoadError::Read {
                path: path.to_owned(),
                err,
            })?;
            tensors.extend(loaded);
        }
        Ok(Self {
            tensors,
            compute: dtype(compute),
            sources: BTreeMap::new(),
            users: HashMap::new(),
        })
    }

    /// Sets the sources of tensors that are derived from stored tensors.
    pub fn set_sources(&mut self, sources: &BTreeMap<String, TensorSource>) {
        self.sources.clone_from(sources);
        self.users.clear();
        for stored in sources.values().flat_map(|source| &source.stored) {
            *self.users.entry(stored.clone()).or_default() += 1;
        }
    }

    /// Returns the element type of float tensors.
    pub fn compute(&self) -> Dtype {
        self.compute
    }

    /// Removes a tensor and returns it; floats are converted to the element type.
    pub fn take(&mut self, name: &str) -> Result<Array, LoadError> {
        self.take_as(name, self.compute)
    }

    /// Like [`take`](Self::take), but in float32, for values that need the precision.
    pub fn take_float32(&mut self, name: &str) -> Result<Array, LoadError> {
        self.take_as(name, Dtype::Float32)
    }

    fn take_as(&mut self, name: &str, compute: Dtype) -> Result<Array, LoadError> {
        let convert = |err| LoadError::Convert {
            tensor: name.to_owned(),
            err,
        };
        let tensor = match self.sources.remove(name) {
            Some(source) => self.make(&source, convert)?,
            None => self.take_stored(name)?,
        };
        let is_float = matches!(tensor.dtype(), Dtype::Float32 | Dtype::Float16 | Dtype::Bfloat16);
        if !is_float || tensor.dtype() == compute {
            return Ok(tensor);
        }
        tensor.as_dtype(compute).map_err(convert)
    }

    fn make(
        &mut self,
        source: &TensorSource,
        convert: impl Fn(mlx_rs::error::Exception) -> LoadError,
    ) -> Result<Array, LoadError> {
        let stored = source.stored.iter().map(|name| self.take_stored(name));
        let stored = stored.collect::<Result<Vec<Array>, LoadError>>()?;
        let made = match &stored[..] {
            [one] => Ok(one.clone()),
            several => stack(several, 0),
        };
        let made = source
            .steps
            .iter()
            .try_fold(made.map_err(&convert)?, |made, step| {
                apply(*step, &made, self.compute).map_err(&convert)
            })?;
        // A view would keep the whole source tensor in memory, and every product would copy the
        // view.
        if source.steps.is_empty() {
            Ok(made)
        } else {
            made.contiguous().map_err(convert)
        }
    }

    /// Returns a stored tensor, and drops it after its last use.
    fn take_stored(&mut self, name: &str) -> Result<Array, LoadError> {
        let users = self.users.entry(name.to_owned()).or_default();
        *users = users.saturating_sub(1);
        let tensor = if *users == 0 {
            self.tensors.remove(name)
        } else {
            self.tensors.get(name).cloned()
        };
        tensor.ok_or_else(|| LoadError::MissingTensor {
            tensor: name.to_owned(),
        })
    }
}

/// Applies one conversion step. Sums use the element type `compute`.
fn apply(step: Step, tensor: &Array, compute: Dtype) -> mlx_rs::error::Result<Array> {
    match step {
        Step::PackWords => tensor.view_dtype(Dtype::Uint32)?.flatten(-2, -1),
        Step::EverySecond { axis, from } => {
            let axis = i32::try_from(axis).expect("tensors have few axes");
            let from = i32::from(from > 0);
            let indices = arange::<i32, i32>(from, tensor.dim(axis), 2)?;
            take_axis(tensor, indices, axis)
        }
        Step::Half { axis, second } => {
            let axis = i32::try_from(axis).expect("tensors have few axes");
            let mut halves = split_equal(tensor, 2, axis)?;
            Ok(halves.swap_remove(usize::from(second)))
        }
        Step::SwapLast => swap_axes(tensor, -1, -2),
        Step::AddOne => {
            let tensor = tensor.as_dtype(compute)?;
            tensor.add(Array::from_f32(1.0).as_dtype(compute)?)
        }
    }
}
