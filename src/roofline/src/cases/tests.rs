use super::*;

const SHAPES: &str =
    r#"{"tiny": {"L": 2, "V": 100, "d": 64, "ff": 128, "hd": 16, "mats": 3, "nh": 4, "nkv": 2, "tied": 1}}"#;

fn row(cells: &[(&str, &str)]) -> Row {
    let full = [
        ("chip", "M4"),
        ("gpu_cores", "10"),
        ("engine", "mlx-lm"),
        ("model_key", "tiny"),
        ("quant", "mlx4"),
    ];
    full.iter()
        .chain(cells)
        .map(|(column, value)| ((*column).to_owned(), (*value).to_owned()))
        .collect()
}

#[test]
fn requires_few_columns_and_errors_name_the_column() {
    let shapes = ShapeFile::parse(SHAPES).unwrap();
    let case = Case::parse(&row(&[("prompt_tokens", "512"), ("gen_tokens", "128")]), &shapes).unwrap();
    assert_eq!(case.workload.context_tokens, 576);
    assert_eq!(case.workload.batch, 1);
    let message = |cells: &[(&str, &str)]| Case::parse(&row(cells), &shapes).unwrap_err().to_string();
    assert!(message(&[("quant", "excellent")]).contains("`excellent` is not a known weight format"));
    assert!(message(&[("model_key", "huge")]).contains("known: tiny"));
    let max = |cells: &[(&str, &str)]| {
        let bin = [("chip", "M4 Max"), ("gpu_cores", "")];
        Case::parse(&row(&[&bin[..], cells].concat()), &shapes).map(|case| case.chip.gpu_cores)
    };
    assert_eq!(max(&[("bandwidth_gbs", "546")]).unwrap(), 40);
    assert_eq!(max(&[("bandwidth_gbs", "400")]).unwrap(), 32);
    assert!(message(&[("model_key", "")]).contains("column `model_key` is missing or empty"));
}

#[test]
fn plain_names_of_gpt_oss_have_the_published_format() {
    let shapes = ShapeFile::parse(SHAPES).unwrap();
    let model = |name: &str, quant: &str| {
        let cells = [("model_key", name), ("quant", quant)];
        Case::parse(&row(&cells), &shapes).unwrap().model
    };
    for name in ["gpt-oss-20b", "openai/gpt-oss-120b", "gpt-oss:20b"] {
        assert_eq!(model(name, ""), model(name, "mxfp4"), "{name}");
        assert_eq!(model(name, "mxfp4-q8"), model(name, "mxfp4"), "{name}");
        assert!(model(name, "mxfp4-q4").weights.every_step < model(name, "mxfp4-q8").weights.every_step);
    }
}

#[test]
fn notes_state_servers_and_idle_engines() {
    let shapes = ShapeFile::parse(SHAPES).unwrap();
    let build = |note: &str| Case::parse(&row(&[("note", note)]), &shapes).unwrap().build;
    assert_eq!(build("5 reps median, cooldown"), build("").idle());
    assert_eq!(build("server; cores not stated").program(), Some("mlx-lm server"));
}

#[test]
fn rate_over_whole_requests_includes_their_overhead() {
    let shapes = ShapeFile::parse(SHAPES).unwrap();
    let parameters = Parameters::built_in();
    let rate = |kind: &str, note: &str, batch: &str| {
        let cells = [
            ("kind", kind),
            ("note", note),
            ("batch", batch),
            ("gen_tokens", "256"),
        ];
        let case = Case::parse(&row(&cells), &shapes).unwrap();
        case.reported_rate(&case.predict(parameters), parameters).p50
    };
    let (decoding, requests) = (
        rate("batch_aggregate", "", "5"),
        rate("batch_aggregate", "e2e aggregate", "5"),
    );
    // 1280 tokens at the decode rate, and five times the overhead of a request.
    let seconds = 1280.0 / decoding + 5.0 * parameters.decode.request_ms / 1e3;
    assert!(
        (requests * seconds / 1280.0 - 1.0).abs() < 1e-9,
        "{requests} {decoding}"
    );
    assert_eq!(rate("decode", "e2e aggregate", "5"), decoding);
}

#[test]
fn kind_defines_the_rate() {
    let shapes = ShapeFile::parse(SHAPES).unwrap();
    let parse = |kind: &str, note: &str, batch: &str, generated: &str| {
        let cells = [
            ("kind", kind),
            ("note", note),
            ("batch", batch),
            ("gen_tokens", generated),
        ];
        let case = Case::parse(&row(&cells), &shapes).unwrap();
        (case.reported, case.remarks.join("; "))
    };
    let whole = ReportedRate::WallClock { generated: 256.0 };
    let requests = ReportedRate::Requests { generated: 256.0 };
    for (kind, note, batch, expected) in [
        ("", "", "1", ReportedRate::PerStream),
        ("Decode", "", "1", ReportedRate::PerStream),
        ("e2e_wall", "", "1", whole),
        ("E2E_WALL", "", "1", whole),
        ("e2e", "", "1", whole),
        ("e2e", "", "5", requests),
        ("E2E", "", "5", requests),
        ("batch_aggregate", "E2E aggregate", "5", requests),
        ("batch_aggregate", "e2e", "1", requests),
        ("batch_aggregate", "", "5", ReportedRate::Aggregate),
    ] {
        let (reported, remarks) = parse(kind, note, batch, "256");
        assert_eq!(reported, expected, "{kind} {note} {batch}");
        assert!(!remarks.contains("column"), "{kind} {note} {batch}: {remarks}");
    }
    let (reported, remarks) = parse("end-to-end", "", "1", "256");
    assert_eq!(reported, ReportedRate::PerStream);
    assert!(remarks.contains("column `kind` is `end-to-end`"), "{remarks}");
    for (kind, batch, expected) in [
        ("e2e", "1", ReportedRate::PerStream),
        ("e2e", "5", ReportedRate::Aggregate),
        ("e2e_wall", "1", ReportedRate::PerStream),
    ] {
        let (reported, remarks) = parse(kind, "", batch, "");
        assert_eq!(reported, expected, "{kind} {batch}");
        assert!(remarks.contains("column `gen_tokens` is empty"), "{remarks}");
    }
}

#[test]
fn largest_numbers_have_predictions_and_larger_ones_name_the_limit() {
    let shapes = ShapeFile::parse(SHAPES).unwrap();
    let parse = |cells: &[(&str, &str)]| {
        let case = Case::parse(&row(cells), &shapes).unwrap();
        case.predict(Parameters::built_in());
        case
    };
    let limits = [
        ("prompt_tokens", "1000000000"),
        ("gen_tokens", "1000000000"),
        ("ctx_avg", "1000000000"),
        ("batch", "1000000"),
        ("gpu_cores", "10000"),
        ("ram_gb", "1000000"),
        ("bandwidth_gbs", "1000000"),
        ("weights_gb_stated", "1000000"),
    ];
    parse(&limits);
    parse(&limits[..2]);
    for (column, limit) in limits {
        parse(&[(column, limit)]);
        for beyond in [
            format!("{limit}1"),
            "4000000000".to_owned(),
            "3999999999".to_owned(),
        ] {
            let remarks = parse(&[(column, &beyond)]).remarks.join("; ");
            let expected = format!("column `{column}` is `{beyond}`, more than the maximum of {limit}");
            assert!(remarks.contains(&expected), "{remarks}");
        }
    }
    let both = parse(&[("prompt_tokens", "3999999999"), ("gen_tokens", "3999999999")]);
    assert_eq!(both.workload.context_tokens, 0);
}

#[test]
fn commas_separate_thousands_only() {
    let number = |text: &str| decimal(&row(&[("weights_gb_stated", text)]), "weights_gb_stated");
    for (text, expected) in [
        ("1,024", 1024.0),
        ("12,345.5", 12345.5),
        ("≈1,234 tokens", 1234.0),
        ("1_024", 1024.0),
        ("1.5e3", 1500.0),
        ("0.125", 0.125),
    ] {
        assert_eq!(number(text).unwrap(), Some(expected), "{text}");
    }
    for text in [
        "12,5", "0,125", "1,0245", "1.024,5", ",125", "1,,024", "1234,567", "12 13", "1,024, 2",
    ] {
        let message = number(text).unwrap_err().to_string();
        assert!(
            message.starts_with(&format!(
                "column `weights_gb_stated` is `{text}`, expected a number"
            )),
            "{message}"
        );
    }
}

/// llmfit's `bench.rs` divides the tokens of an answer by the time of the request. Ollama reports
/// the time of its decode.
#[test]
fn rates_of_llmfit_count_the_prefill_except_those_of_ollama() {
    let shapes = ShapeFile::parse(SHAPES).unwrap();
    let reported = |engine: &str, release: &str| {
        let cells = [
            ("engine", engine),
            ("engine_version", release),
            ("gen_tokens", "250"),
        ];
        Case::parse(&row(&cells), &shapes).unwrap().reported
    };
    let whole = ReportedRate::WallClock { generated: 250.0 };
    for engine in ["mlx-lm", "llama.cpp", "vllm-mlx"] {
        assert_eq!(reported(engine, "llmfit 2026-08/09"), whole, "{engine}");
        assert_eq!(reported(engine, "2026-08"), ReportedRate::PerStream, "{engine}");
    }
    assert_eq!(reported("ollama", "llmfit 1.1.6"), ReportedRate::PerStream);
}

/// Sizes of Gemma 3 12B in its repositories. The MLX version has a vision tower and a second head;
/// the GGUF version is a mix.
#[test]
fn stated_size_adjusts_the_weights_if_plausible() {
    let shapes = ShapeFile::parse(include_str!("../../../model/src/shapes.json")).unwrap();
    let weights = |format: &str, gigabytes: &str| {
        let cells = [
            ("model_key", "gemma3-12b"),
            ("quant", format),
            ("weights_gb_stated", gigabytes),
        ];
        Case::parse(&row(&cells), &shapes).unwrap().model.weights
    };
    let (named, stated) = (weights("mlx4", ""), weights("mlx4", "8.03"));
    assert_eq!(
        (named.every_step, named.experts),
        (stated.every_step, stated.experts)
    );
    assert_eq!(stated.resident(), Bytes(8_030_000_000));
    assert_eq!(weights("mlx4", "24.4"), named, "the size belongs to another file");
    assert_eq!(weights("mlx4", "6.1"), named, "no file of this format is smaller");
    let (named, stated) = (weights("q4_k_m", ""), weights("q4_k_m", "7.60"));
    let share = 7.60e9 / named.resident().0 as f64;
    assert!(share > 1.01, "{share}");
    assert!((stated.every_step.0 as f64 / named.every_step.0 as f64 / share - 1.0).abs() < 1e-6);
}

#[test]
fn notation_does_not_change_the_prediction() {
    let shapes = ShapeFile::parse(SHAPES).unwrap();
    let parameters = Parameters::built_in();
    let predicted = |cells: &[(&str, &str)]| {
        let case = Case::parse(&row(cells), &shapes).unwrap();
        assert_eq!(case.remarks, Vec::<String>::new(), "{cells:?}");
        (case.predict(parameters), case.workload)
    };
    let plain = predicted(&[("prompt_tokens", "1024"), ("ctx_avg", "2048"), ("batch", "")]);
    for cells in [
        &[("prompt_tokens", "1,024"), ("ctx_avg", "2k"), ("batch", "1")][..],
        &[
            ("prompt_tokens", "≈1024 tokens"),
            ("ctx_avg", "2048.4"),
            ("batch", "n/a"),
        ],
        &[
            ("prompt_tokens", "1.024e3"),
            ("ctx_avg", "2048"),
            ("engine", "MLX"),
            ("quant", "MLX-4bit"),
        ],
        &[
            ("prompt_tokens", "1024"),
            ("ctx_avg", "2048"),
            ("gpu_cores", ""),
            ("chip", "MacBook Air M4 (10-core GPU)"),
        ],
        &[
            ("prompt_tokens", "1024"),
            ("ctx_avg", "2048"),
            ("model_key", "Tiny"),
        ],
    ] {
        assert_eq!(predicted(cells), plain, "{cells:?}");
    }
}

/// An incomplete row has a prediction with a wider interval.
#[test]
fn reports_assumptions_about_missing_values() {
    let shapes = ShapeFile::parse(SHAPES).unwrap();
    let parameters = Parameters::built_in();
    let predict = |cells: &[(&str, &str)]| {
        let case = Case::parse(&row(cells), &shapes).unwrap();
        let rate = case.predict(parameters).decode.tokens_per_second;
        (rate.p90 / rate.p10, case.remarks.join("; "))
    };
    let (known_width, no_remarks) = predict(&[("chip", "M4 Max"), ("gpu_cores", "40")]);
    assert_eq!(no_remarks, "");
    for (cells, expected) in [
        (
            [("chip", "M9 Max"), ("gpu_cores", "40")],
            "Apple M9 Max is in no catalogue",
        ),
        (
            [("chip", "M4 Max"), ("gpu_cores", "38")],
            "no Apple M4 Max with 38 GPU cores",
        ),
        ([("chip", "M4 Max"), ("gpu_cores", "")], "is assumed"),
        ([("engine", "Jan"), ("quant", "bf16")], "mlx is assumed"),
        ([("engine", ""), ("quant", "f16")], "llama.cpp is assumed"),
        ([("engine", "ollama"), ("quant", "q4")], "q4_k_m is assumed"),
    ] {
        let (width, remarks) = predict(&cells);
        assert!(
            width > known_width && remarks.contains(expected),
            "{cells:?}: {remarks}"
        );
    }
    let (width, remarks) = predict(&[("chip", "M4 Max"), ("gpu_cores", "40"), ("batch", "many")]);
    assert!(
        width == known_width && remarks.contains("column `batch` is `many`"),
        "{remarks}"
    );
    let case = |prompt: &str| Case::parse(&row(&[("prompt_tokens", prompt)]), &shapes).unwrap();
    assert_eq!(case("0"), case(""));
    assert!(!case("0").prompt_known);
    let (_, remarks) = predict(&[("model_key", "Qwen3-8B"), ("gpu_cores", "10")]);
    assert!(
        remarks.contains("the published shape of qwen3-8b is used"),
        "{remarks}"
    );
}
