use super::*;
use crate::roofline::chip;
use crate::roofline::shapes::ShapeFile;
use crate::roofline::weights::WeightFormat;

fn llama_7b(format: WeightFormat) -> ModelCost {
    let shapes = r#"{"llama2-7b": {"L": 32, "V": 32000, "d": 4096, "ff": 11008, "hd": 128, "mats": 3, "nh": 32, "nkv": 32, "tied": 0}}"#;
    let dimensions = ShapeFile::parse(shapes).unwrap().dimensions("llama2-7b").unwrap();
    let weights = Weights::estimate(&dimensions, format);
    ModelCost { dimensions, weights }
}

/// llama.cpp discussion 4167 lists 83.06 tokens/s for this model and format on an M4 Max with 40 cores.
#[test]
fn a_published_figure_lies_in_the_interval() {
    let chip = chip::find("M4 Max", Some(40), None).unwrap();
    let workload = Workload {
        batch: 1,
        context_tokens: 64,
        prompt_tokens: 512,
        cached_tokens: 0,
        kv_bits: KvBits::HALF,
    };
    let model = llama_7b(WeightFormat::Q4_0);
    let prediction = Prediction::new(
        Parameters::built_in(),
        Hardware::Chip(chip),
        Engine::LlamaCpp,
        &model,
        workload,
    );
    let rate = prediction.decode.tokens_per_second;
    assert!(rate.p10 <= 83.06 && 83.06 <= rate.p90, "{rate:?}");
}
