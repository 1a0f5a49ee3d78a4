use super::*;
use crate::model_dir::ModelDir;
use rooflet_model::checkpoint::TensorTable;
use rooflet_testing::repository;

fn listing(text: &str) -> Vec<Sibling> {
    serde_json::from_str::<Listing>(text).unwrap().siblings
}

#[test]
fn selects_only_files_that_a_worker_reads() {
    let index = rooflet_model::facts::WeightIndex::parse(
        r#"{"metadata": {}, "weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}"#,
    )
    .unwrap();
    let siblings = listing(
        r#"{"sha": "c0", "siblings": [
            {"rfilename": ".gitattributes", "size": 10},
            {"rfilename": "README.md", "size": 10},
            {"rfilename": "tokenizer.json", "size": 9, "lfs": {"sha256": "AB", "size": 11, "pointerSize": 9}},
            {"rfilename": "config.json", "size": 12},
            {"rfilename": "chat_template.jinja", "size": 1},
            {"rfilename": "model.safetensors.index.json", "size": 13},
            {"rfilename": "model-1.safetensors", "size": 1, "lfs": {"sha256": "cd", "size": 14, "pointerSize": 1}},
            {"rfilename": "model-2.safetensors", "lfs": {"sha256": "ef", "size": 15, "pointerSize": 1}},
            {"rfilename": "consolidated.safetensors", "lfs": {"sha256": "ef", "size": 15, "pointerSize": 1}},
            {"rfilename": "additional_chat_templates/tool_use.jinja", "size": 3},
            {"rfilename": "additional_chat_templates/rag.jinja", "size": 3},
            {"rfilename": "original/config.json", "size": 2},
            {"rfilename": "pytorch_model.bin"}
        ]}"#,
    );
    let files = needed(siblings, &KnownTensors::Index(index)).unwrap();
    let selected: Vec<_> = files
        .iter()
        .map(|file| (file.name.as_str(), file.bytes, file.sha256.as_deref()))
        .collect();
    assert_eq!(
        selected,
        [
            ("additional_chat_templates/tool_use.jinja", 3, None),
            ("chat_template.jinja", 1, None),
            ("config.json", 12, None),
            ("model-1.safetensors", 14, Some("cd")),
            ("model-2.safetensors", 15, Some("ef")),
            ("model.safetensors.index.json", 13, None),
            ("tokenizer.json", 11, Some("ab")),
        ]
    );
    let without_size = listing(r#"{"sha": "c0", "siblings": [{"rfilename": "config.json"}]}"#);
    let unknown = needed(without_size, &KnownTensors::Unknown).unwrap_err();
    assert_eq!(unknown.file, "config.json");
}

/// transformers and mlx-lm use the head of this model, although its config ties it to the embedding
/// table.
#[test]
fn stored_head_counts_before_the_download() {
    let dir = repository().join("e2e/fixtures/models/gemma3-head");
    let file = std::fs::read(dir.join("model.safetensors")).unwrap();
    let (length, rest) = file.split_first_chunk().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let mut tensors = TensorTable::default();
    tensors
        .add_file("model.safetensors", header, data.len() as u64)
        .unwrap();
    let snapshot = HubSnapshot {
        model: HubModel {
            owner: "rooflet".to_owned(),
            name: "gemma3-head".to_owned(),
            revision: None,
        },
        files: Vec::new(),
        checkpoint: Checkpoint {
            config: std::fs::read_to_string(dir.join("config.json")).unwrap(),
            tensors: KnownTensors::Headers(tensors),
        },
    };
    let downloaded = ModelDir::inspect(&dir).unwrap().shape;
    let shape = snapshot.shape().unwrap();
    assert_eq!((shape.tied, downloaded.tied), (false, false));
    assert_eq!(shape.weights_bytes, downloaded.weights_bytes);
    let facts = snapshot.checkpoint.facts().unwrap();
    assert_eq!(facts.weights.resident(), Bytes(downloaded.weights_bytes));
}
