//! Weights from safetensors files into MLX arrays. The files' headers have been checked (`model_dir`), so what fails
//! here is reading.

use std::collections::HashMap;

use camino::{Utf8Path, Utf8PathBuf};
use mlx_rs::error::IoError;
use mlx_rs::{Array, Dtype};

use crate::roofline::model::FloatType;

/// Tensors by name, lazily loaded: reading happens when they are evaluated.
#[derive(Debug)]
pub(crate) struct Weights {
    tensors: HashMap<String, Array>,
    compute: Dtype,
}

/// Why weights cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error("reading weights from `{path}`")]
    Read {
        path: Utf8PathBuf,
        #[source]
        err: IoError,
    },
    #[error("tensor `{tensor}` is not in the weights")]
    MissingTensor { tensor: String },
    #[error("preparing tensor `{tensor}`")]
    Convert {
        tensor: String,
        #[source]
        err: mlx_rs::error::Exception,
    },
    #[error("reading weights")]
    Evaluate {
        #[source]
        err: mlx_rs::error::Exception,
    },
}

impl LoadError {
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Read { .. } | Self::Evaluate { .. } => "ReadFailed",
            Self::MissingTensor { .. } | Self::Convert { .. } => "InvalidWeights",
        }
    }
}

pub(crate) fn dtype(element: FloatType) -> Dtype {
    match element {
        FloatType::F32 => Dtype::Float32,
        FloatType::F16 => Dtype::Float16,
        FloatType::BF16 => Dtype::Bfloat16,
    }
}

impl Weights {
    /// Opens the files; float tensors will come out as `compute`.
    pub(crate) fn open<P: AsRef<Utf8Path>>(files: &[P], compute: FloatType) -> Result<Self, LoadError> {
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
        })
    }

    /// The element type that floats come out as.
    pub(crate) fn compute(&self) -> Dtype {
        self.compute
    }

    /// A number in that type, on the device.
    pub(crate) fn constant(&self, value: f32) -> mlx_rs::error::Result<Array> {
        let constant = Array::from_f32(value).as_dtype(self.compute)?;
        constant.eval()?;
        Ok(constant)
    }

    /// Takes a tensor out, floats converted.
    pub(crate) fn take(&mut self, name: &str) -> Result<Array, LoadError> {
        let tensor = self
            .tensors
            .remove(name)
            .ok_or_else(|| LoadError::MissingTensor {
                tensor: name.to_owned(),
            })?;
        let is_float = matches!(tensor.dtype(), Dtype::Float32 | Dtype::Float16 | Dtype::Bfloat16);
        if !is_float || tensor.dtype() == self.compute {
            return Ok(tensor);
        }
        tensor.as_dtype(self.compute).map_err(|err| LoadError::Convert {
            tensor: name.to_owned(),
            err,
        })
    }
}
