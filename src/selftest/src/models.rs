//! Tiny models of every family against their stored logits.

use std::collections::BTreeMap;
use std::fs;
use std::io;

use camino::{Utf8Path, Utf8PathBuf};

use rooflet_artifact::model_dir::{InspectModelError, ModelDir};
use rooflet_mlx::backend::Backend;
use rooflet_mlx::load::{LoadError, Weights};
use rooflet_mlx::mlx_rs;
use rooflet_model::config::FloatType;

use super::archive::{self, UnpackError};
use super::check::{Check, Group};
use rooflet_base::error::Chain;
use rooflet_decoder::Decoder;
use rooflet_decoder::replay::{Case, REFERENCE_TOLERANCE, Replay, larger};

/// Folder of the models in the archive, and in the paths of the cases.
const MODELS: &str = "e2e/fixtures/models/";

/// Error that prevents the check of a model.
#[derive(Debug, thiserror::Error)]
pub(super) enum ModelsError {
    #[error("failed to unpack the models")]
    Unpack {
        #[source]
        err: UnpackError,
    },
    #[error("failed to write `{path}`")]
    Write {
        path: Utf8PathBuf,
        #[source]
        err: io::Error,
    },
    #[error("the directory for temporary files has no UTF-8 path")]
    Path,
    #[error("failed to read the stored logits")]
    Cases {
        #[source]
        err: serde_json::Error,
    },
    #[error("failed to inspect a model")]
    Inspect {
        #[source]
        err: InspectModelError,
    },
    #[error("failed to load a model")]
    Load {
        #[source]
        err: LoadError,
    },
    #[error("failed to compute with a model")]
    Compute {
        #[source]
        err: mlx_rs::error::Exception,
    },
}

/// Tiny models in a temporary directory, with the results of the reference programs.
#[derive(Debug)]
pub(super) struct TinyModels {
    directory: Utf8PathBuf,
    /// Cases by model.
    pub(super) cases: BTreeMap<String, Vec<Case>>,
}

impl Drop for TinyModels {
    fn drop(&mut self) {
        // The system deletes what remains in its directory for temporary files.
        drop(fs::remove_dir_all(&self.directory));
    }
}

impl TinyModels {
    pub(super) fn unpack() -> Result<Self, ModelsError> {
        let files = archive::unpack().map_err(|err| ModelsError::Unpack { err })?;
        let parent = Utf8PathBuf::from_path_buf(std::env::temp_dir()).map_err(|_| ModelsError::Path)?;
        let directory = parent.join(format!("rooflet-selftest-{}", uuid::Uuid::new_v4()));
        let mut models = Self {
            directory,
            cases: BTreeMap::new(),
        };
        for file in files {
            if !file.path.starts_with("models/") {
                models.add_cases(&file.contents)?;
                continue;
            }
            let path = models.directory.join(&file.path);
            let written = path.parent().map_or(Ok(()), fs::create_dir_all);
            written
                .and_then(|()| fs::write(&path, &file.contents))
                .map_err(|err| ModelsError::Write { path, err })?;
        }
        Ok(models)
    }

    /// Adds the cases of models in the archive.
    fn add_cases(&mut self, json: &[u8]) -> Result<(), ModelsError> {
        let cases = Case::parse_all(json).map_err(|err| ModelsError::Cases { err })?;
        for case in cases {
            if let Some(model) = case.model.strip_prefix(MODELS) {
                let model = model.to_owned();
                self.cases.entry(model).or_default().push(case);
            }
        }
        Ok(())
    }

    pub(super) fn path(&self, model: &str) -> Utf8PathBuf {
        self.directory.join("models").join(model)
    }

    pub(super) fn load(&self, model: &str, compute: FloatType) -> Result<Decoder, ModelsError> {
        load(&self.path(model), compute)
    }
}

fn load(path: &Utf8Path, compute: FloatType) -> Result<Decoder, ModelsError> {
    let dir = ModelDir::inspect(path).map_err(|err| ModelsError::Inspect { err })?;
    let mut weights = Weights::open(&dir.weight_files, compute).map_err(|err| ModelsError::Load { err })?;
    Decoder::load(&dir.shape, &mut weights).map_err(|err| ModelsError::Load { err })
}

/// Returns the element types that models compute in.
pub(super) fn compute_types(backend: Backend) -> &'static [FloatType] {
    match backend {
        Backend::Cpu => &[FloatType::F32],
        Backend::Metal | Backend::Cuda => &[FloatType::F32, FloatType::F16, FloatType::BF16],
    }
}

/// Returns the largest [`difference`] that rounding explains. The logits of the tiny models have
/// magnitudes of up to 6. On a CPU, the difference is at most 0.05 in float16 and 0.6 in bfloat16.
/// A GPU may round the factors of float32 products to 10 bits (TF32), as float16 does.
pub(super) fn tolerance(backend: Backend, compute: FloatType) -> f32 {
    match (backend, compute) {
        (Backend::Cpu, _) => REFERENCE_TOLERANCE,
        (Backend::Metal | Backend::Cuda, FloatType::F32 | FloatType::F16) => 0.15,
        (Backend::Metal | Backend::Cuda, FloatType::BF16) => 1.0,
    }
}

/// Returns the difference of a model's results from the stored results. On a CPU, this is the
/// largest difference of all logits and tokens. On a GPU, rounding can select another expert for a
/// token, after which all its logits differ, so the median of the positions with stored logits
/// counts.
pub(super) fn difference(backend: Backend, results: &[(Replay, &Case)]) -> f32 {
    match backend {
        Backend::Cpu => {
            let differences = results.iter().map(|(replay, case)| replay.difference(case));
            differences.fold(0.0, larger)
        }
        Backend::Metal | Backend::Cuda => {
            let positions = results.iter();
            median(positions.flat_map(|(replay, case)| replay.differences_by_position(case)))
        }
    }
}

/// Returns the median. NaN if a value is NaN, or if there are none.
fn median(values: impl Iterator<Item = f32>) -> f32 {
    let mut values: Vec<f32> = values.collect();
    values.sort_unstable_by(f32::total_cmp);
    let has_nan = values.iter().any(|value| value.is_nan());
    let middle = values.get(values.len() / 2).copied();
    middle.filter(|_| !has_nan).unwrap_or(f32::NAN)
}

/// Compares every model in each element type.
pub(super) fn run(backend: Backend, report: &mut dyn FnMut(Check)) {
    match TinyModels::unpack() {
        Ok(models) => check_all(&models, backend, report),
        Err(err) => report(Check::failed(Group::Models, "models", Chain(&err))),
    }
}

pub(super) fn check_all(models: &TinyModels, backend: Backend, report: &mut dyn FnMut(Check)) {
    for (model, cases) in &models.cases {
        for compute in compute_types(backend) {
            report(check(models, model, cases, *compute, backend));
        }
    }
}

fn check(models: &TinyModels, model: &str, cases: &[Case], compute: FloatType, backend: Backend) -> Check {
    let name = format!("{model} in {}", type_name(compute));
    let results = models.load(model, compute).and_then(|decoder| {
        let results = cases.iter().map(|case| {
            let replay = Replay::run(&decoder, case).map_err(|err| ModelsError::Compute { err })?;
            Ok((replay, case))
        });
        results.collect::<Result<Vec<_>, _>>()
    });
    match results {
        Err(err) => Check::failed(Group::Models, name, Chain(&err)),
        Ok(results) => {
            let tokens: usize = cases.iter().map(|case| case.greedy.len()).sum();
            let finding = format!("logits after {} prompts and {tokens} tokens", cases.len());
            let difference = difference(backend, &results);
            Check::of_difference(
                Group::Models,
                name,
                difference,
                tolerance(backend, compute),
                finding,
            )
        }
    }
}

pub(super) fn type_name(float: FloatType) -> &'static str {
    match float {
        FloatType::F32 => "float32",
        FloatType::F16 => "float16",
        FloatType::BF16 => "bfloat16",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_ignores_a_single_outlier_but_not_nan() {
        let median = |values: &[f32]| median(values.iter().copied());
        assert_eq!(median(&[0.1, 9.0, 0.2]), 0.2);
        assert_eq!(median(&[9.0, 0.1, 9.0]), 9.0);
        assert!(median(&[0.1, f32::NAN, 0.2]).is_nan());
        assert!(median(&[]).is_nan());
    }
}
