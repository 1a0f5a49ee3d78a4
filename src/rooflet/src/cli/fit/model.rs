//! MODEL argument of `rooflet fit`: from its text to the model's facts.

use anyhow::{Context, anyhow};
use camino::Utf8Path;
use serde_json::Value;

use crate::cli::{Failure, block_on};
use rooflet_artifact::model_dir;
use rooflet_artifact::remote;
use rooflet_artifact::remote::{HubAccess, RemoteModel};
use rooflet_base::error::ExitStatus;
use rooflet_model::facts::ModelFacts;
use rooflet_model::library;
use rooflet_model::library::LibraryError;
use rooflet_model::shapes::ShapeFile;
use rooflet_model::weights::WeightFormat;

/// Model facts with a name.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::cli) struct NamedModel {
    pub(in crate::cli) name: String,
    pub(in crate::cli) facts: ModelFacts,
    /// Requested format, if the model is a shape.
    pub(in crate::cli) format: Option<WeightFormat>,
}

pub(in crate::cli) fn load(model: &str, quantization: Option<WeightFormat>) -> Result<NamedModel, Failure> {
    let exists = Utf8Path::new(model).exists();
    if let Some((file, name)) = model.rsplit_once('#').filter(|_| !exists) {
        return shape(Utf8Path::new(file), name, quantization);
    }
    if !model.contains('/') && !exists {
        return named(model, quantization);
    }
    if quantization.is_some() {
        let err = anyhow!(
            "--quantization applies to names such as qwen3-8b and to FILE.json#NAME; `{model}` defines its weight format itself"
        );
        return Err(Failure::new(ExitStatus::Usage, err));
    }
    if RemoteModel::matches(model) {
        return block_on(remote_model(model));
    }
    let path = Utf8Path::new(model);
    if let Some(names) = shapes_in(path) {
        let err = anyhow!(
            "`{model}` contains shapes, not a model's config.json: append the name of a shape, such as {model}#{names}"
        );
        return Err(Failure::new(ExitStatus::Usage, err));
    }
    let facts = model_dir::facts(path).map_err(|err| Failure::new(ExitStatus::Config, err))?;
    let directory = if path.is_dir() { Some(path) } else { path.parent() };
    let canonical = directory.and_then(|directory| directory.canonicalize_utf8().ok());
    let name = canonical
        .as_deref()
        .and_then(Utf8Path::file_name)
        .unwrap_or(model);
    Ok(NamedModel {
        name: name.to_owned(),
        facts,
        format: None,
    })
}

/// Finds a published model by name.
fn named(name: &str, quantization: Option<WeightFormat>) -> Result<NamedModel, Failure> {
    let found = library::find(name, quantization).map_err(|err| match err {
        // The name may have been meant as a directory.
        LibraryError::UnknownModel { .. } if quantization.is_none() => {
            let err = anyhow::Error::new(err).context(format!("file or directory `{name}` does not exist"));
            Failure::new(ExitStatus::Config, err)
        }
        LibraryError::ConflictingFormat { .. } => {
            Failure::new(ExitStatus::Usage, anyhow!("--quantization: {err}"))
        }
        LibraryError::UnknownModel { .. } | LibraryError::UnknownFormat { .. } => {
            Failure::new(ExitStatus::Usage, anyhow::Error::new(err))
        }
    })?;
    Ok(NamedModel {
        name: found.key.to_owned(),
        facts: ModelFacts::of_shape(found.key, found.dimensions, found.format),
        format: Some(found.format),
    })
}

async fn remote_model(model: &str) -> Result<NamedModel, Failure> {
    let model: RemoteModel = model
        .parse()
        .map_err(|err| Failure::new(ExitStatus::Usage, err))?;
    let hub = HubAccess::from_environment().map_err(|err| Failure::new(ExitStatus::Usage, err))?;
    Ok(NamedModel {
        name: model.name().to_owned(),
        facts: remote::facts(&model, &hub).await?,
        format: None,
    })
}

/// Returns the first name in a file of shapes. `None` for other files, such as a renamed
/// configuration.
fn shapes_in(path: &Utf8Path) -> Option<String> {
    if path.extension() != Some("json") {
        return None;
    }
    let text = std::fs::read_to_string(path).ok()?;
    let value: Value = serde_json::from_str(&text).ok()?;
    if value["model_type"].is_string() {
        return None;
    }
    let shapes = ShapeFile::parse(&text).ok()?;
    shapes.names().next().map(str::to_owned)
}

fn shape(file: &Utf8Path, name: &str, quantization: Option<WeightFormat>) -> Result<NamedModel, Failure> {
    let Some(format) = quantization else {
        let err = anyhow!(
            "a shape has no weight format: add --quantization, one of {}",
            WeightFormat::NAMES
        );
        return Err(Failure::new(ExitStatus::Usage, err));
    };
    let text = std::fs::read_to_string(file).with_context(|| format!("reading {file}"))?;
    let unusable = |err| {
        let err = anyhow::Error::new(err).context(format!("reading {file}"));
        Failure::new(ExitStatus::Config, err)
    };
    let dimensions = ShapeFile::parse(&text)
        .and_then(|shapes| shapes.dimensions(name))
        .map_err(unusable)?;
    Ok(NamedModel {
        name: name.to_owned(),
        facts: ModelFacts::of_shape(name, dimensions, format),
        format: Some(format),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = r#"{"model_type": "qwen3", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 100,
        "max_position_embeddings": 512, "tie_word_embeddings": true}"#;
    const SHAPES: &str = r#"{"tiny": {"L": 2, "V": 100, "d": 64, "ff": 128, "hd": 16, "mats": 3, "nh": 4, "nkv": 2, "tied": 1}}"#;

    #[test]
    fn file_type_is_detected_from_its_contents() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = directory.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        for name in ["config.json", "other.json", "try #2/config.json"] {
            let loaded = load(&write(name, CONFIG), None).unwrap();
            assert_eq!(loaded.facts.model_type, "qwen3", "{name}");
        }
        let shapes = write("shapes.json", SHAPES);
        let refused = load(&shapes, None).unwrap_err().error.to_string();
        assert!(
            refused.contains("contains shapes") && refused.contains("shapes.json#tiny"),
            "{refused}"
        );
        let tiny = load(&format!("{shapes}#tiny"), Some(WeightFormat::BFloat16)).unwrap();
        assert_eq!(tiny.name, "tiny");
    }
}
