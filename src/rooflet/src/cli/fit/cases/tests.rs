use super::*;

const SHAPES: &str =
    r#"{"tiny": {"L": 2, "V": 100, "d": 64, "ff": 128, "hd": 16, "mats": 3, "nh": 4, "nkv": 2, "tied": 1}}"#;
const HEADER: &str = "id,chip,gpu_cores,engine,model_key,quant,prompt_tokens,note";
const GOOD: &str = "7,M4,10,mlx-lm,tiny,mlx4,512,plain";

fn predict(table: &[u8]) -> anyhow::Result<Predicted> {
    Predicted::new(table, &ShapeFile::parse(SHAPES).unwrap())
}

/// Rows as cells by column name.
fn rows(predicted: &Predicted) -> Vec<Row> {
    let mut reader = csv::Reader::from_reader(predicted.csv.as_slice());
    reader.deserialize().map(Result::unwrap).collect()
}

fn lines(lines: &[&str]) -> Vec<u8> {
    (lines.join("\n") + "\n").into_bytes()
}

#[test]
fn invalid_row_is_reported_with_its_line_and_affects_no_other() {
    let bad = [
        (
            "8,RTX 4090,,mlx-lm,tiny,mlx4,512,",
            "no chip is called `RTX 4090`",
        ),
        ("8,M4,10,mlx-lm,huge,mlx4,512,", "there is no shape `huge`"),
        (
            "8,M4,10,mlx-lm,tiny,excellent,512,",
            "`excellent` is not a known weight format; known: mlx2",
        ),
        ("8,M4,10,mlx-lm,tiny,,512,", "column `quant` is missing or empty"),
        ("8,M4,10,mlx-lm,tiny", "the row has 5 cells but line 1 has 8"),
        ("8,M4,10,mlx-lm,tiny,mlx4,512,a, b", "the row has 9 cells"),
    ];
    for (row, problem) in bad {
        let predicted = predict(&lines(&[HEADER, GOOD, row, GOOD])).unwrap();
        let [(line, message)] = predicted.problems.as_slice() else {
            panic!("{row}: {:?}", predicted.problems);
        };
        assert!(*line == 3 && message.contains(problem), "{row}: {line} {message}");
        let rows = rows(&predicted);
        let ids: Vec<&str> = rows.iter().map(|row| row["id"].as_str()).collect();
        assert_eq!(ids, ["7", "8", "7"]);
        assert_eq!(rows[1]["decode_tps_p50"], "");
        assert!(rows[0]["decode_tps_p50"].parse::<f64>().unwrap() > 0.0);
        assert_eq!(rows[0], rows[2]);
    }
}

/// Some programs wrap one of two engines; the weight format determines which.
#[test]
fn weight_format_determines_the_engine_of_wrappers() {
    let rate = |row: &str| {
        let predicted = predict(&lines(&[HEADER, row])).unwrap();
        assert!(predicted.problems.is_empty(), "{:?}", predicted.problems);
        rows(&predicted)[0]["decode_tps_p50"].clone()
    };
    for (format, engine) in [
        ("mlx4", "mlx-lm"),
        ("4bit", "mlx-lm"),
        ("q5_0", "llama.cpp"),
        ("iq4_xs", "llama.cpp"),
    ] {
        let of = |engine: &str| rate(&format!("8,M4-Pro,20,{engine},tiny,{format},512,"));
        assert_eq!(of("Jan"), of(engine), "{format}");
    }
}

#[test]
fn assumptions_are_reported_with_their_line() {
    let row = "8,M9 Max,10,mlx-lm,tiny,mlx4,many,";
    let predicted = predict(&lines(&[HEADER, GOOD, row])).unwrap();
    let [(3, message)] = predicted.problems.as_slice() else {
        panic!("{:?}", predicted.problems);
    };
    assert!(
        message.contains("M9 Max is in no catalogue") && message.contains("column `prompt_tokens` is `many`"),
        "{message}"
    );
    let rows = rows(&predicted);
    assert!(rows[1]["decode_tps_p50"].parse::<f64>().unwrap() > 0.0);
    assert_eq!(rows[1]["ttft_ms_p50"], "");
}

#[test]
fn result_does_not_depend_on_the_file_format() {
    let plain = rows(&predict(&lines(&[HEADER, GOOD])).unwrap());
    let cells: Vec<&str> = GOOD.split(',').collect();
    let quoted: Vec<String> = cells.iter().map(|cell| format!("\"{cell}\"")).collect();
    let reversed = |line: &str| line.split(',').rev().collect::<Vec<_>>().join(",");
    let variants = [
        format!("{HEADER}\r\n{GOOD}\r\n"),
        format!("\u{feff}{HEADER}\n{GOOD}"),
        format!("{HEADER}\n\n{GOOD}\n\n"),
        format!("{HEADER}\n{}\n", quoted.join(",")),
        format!("{}\n{}\n", reversed(HEADER), reversed(GOOD)),
    ];
    for table in variants {
        let predicted = predict(table.as_bytes()).unwrap();
        assert_eq!(predicted.problems, []);
        assert_eq!(rows(&predicted), plain, "{table}");
    }
}

#[test]
fn line_numbers_match_those_of_an_editor() {
    let bad = "8,RTX,10,mlx-lm,tiny,mlx4,512,";
    let two_lines = "7,M4,10,mlx-lm,tiny,mlx4,512,\"first\nsecond\"";
    for (ends, table) in [
        ("LF", format!("{HEADER}\n{GOOD}\n{two_lines}\n\n{bad}\n")),
        (
            "CR LF",
            format!("{HEADER}\r\n{GOOD}\r\n{two_lines}\r\n\r\n{bad}\r\n"),
        ),
    ] {
        let predicted = predict(table.as_bytes()).unwrap();
        assert_eq!(predicted.problems.len(), 1);
        assert_eq!(predicted.problems[0].0, 6, "{ends}");
    }
}

#[test]
fn unused_columns_are_copied_byte_by_byte() {
    let mut table = format!("{HEADER},mine\n{GOOD},\"a, \"\"b\"\"\"\n").into_bytes();
    let note = table.windows(5).position(|bytes| bytes == b"plain").unwrap();
    table[note] = 0xe9; // é in Latin-1
    let predicted = predict(&table).unwrap();
    assert_eq!(predicted.problems, []);
    let mut reader = csv::Reader::from_reader(predicted.csv.as_slice());
    let names = reader.byte_headers().unwrap().clone();
    assert_eq!(
        names.iter().nth(names.len() - ADDED.len()),
        Some(&b"decode_tps_p10"[..])
    );
    let row = reader.byte_records().next().unwrap().unwrap();
    assert_eq!(&row[7], b"\xe9lain");
    assert_eq!(&row[8], b"a, \"b\"");
}

#[test]
fn missing_required_column_is_named() {
    let message = |header: &str| predict(&lines(&[header, GOOD])).unwrap_err().to_string();
    let missing = message(&HEADER.replace("quant", "quantization"));
    assert!(
        missing.contains("no column `quant`; a table of cases needs"),
        "{missing}"
    );
    assert!(message("").contains("`chip`, `engine`, `model_key`, `quant`"));
    let few = "chip,gpu_cores,engine,model_key,quant";
    let predicted = predict(&lines(&[few, "M4,10,mlx-lm,tiny,mlx4"])).unwrap();
    let rows = rows(&predicted);
    assert_eq!(
        rows[0]["ttft_ms_p50"], "",
        "an unknown prompt has no time to first token"
    );
    assert_eq!(rows[0]["basis"], "Nominal");
}

#[test]
fn first_tokens_and_prefill_have_intervals() {
    let rows = rows(&predict(&lines(&[HEADER, GOOD])).unwrap());
    let cell = |column: &str| rows[0][column].parse::<f64>().unwrap();
    for figure in ["decode_tps", "prefill_tps", "ttft_ms"] {
        let [low, middle, high] = ["p10", "p50", "p90"].map(|share| cell(&format!("{figure}_{share}")));
        assert!(low < middle && middle < high, "{figure}: {low} {middle} {high}");
    }
}

/// The table that the predictor was fitted to, as published.
#[test]
fn every_published_row_is_predicted() {
    let shapes = ShapeFile::parse(include_str!("../../../../../model/src/shapes.json")).unwrap();
    let table = include_bytes!("../../../../../roofline-fit/src/measurements.csv");
    let predicted = Predicted::new(table, &shapes).unwrap();
    let failed = predicted
        .problems
        .iter()
        .find(|(_, problem)| problem.contains("no prediction"));
    assert_eq!(failed, None);
    assert_eq!(rows(&predicted).len(), 725);
}

#[test]
fn format_in_the_model_name_need_not_be_repeated() {
    let header = "Chip,GPU_Cores,Engine,model_key,model,Quant,prompt_tokens";
    let table = [
        header,
        "M4,10,mlx-lm,tiny,,mlx4,512",
        "M4,10,mlx-lm,tiny,Tiny-4bit,,512",
        "M4,10,mlx-lm,,Qwen3-8B-4bit,,512",
        "M4,10,mlx-lm,qwen3-8b,,mlx4,512",
        "M4,10,mlx-lm,,Huge,mlx4,512",
        "M4,10,mlx-lm,tiny,Tiny,,512",
    ];
    let predicted = predict(&lines(&table)).unwrap();
    let rows = rows(&predicted);
    let rate = |row: usize| rows[row]["decode_tps_p50"].as_str();
    assert!(!rate(0).is_empty() && rate(0) == rate(1));
    assert!(!rate(2).is_empty() && rate(2) == rate(3));
    assert_eq!((rate(4), rate(5)), ("", ""));
    let remark = |line: usize| {
        let mut problems = predicted.problems.iter();
        problems
            .find(|(at, _)| *at == line)
            .map_or("", |(_, message)| message.as_str())
    };
    assert!(
        remark(3).contains("column `quant` is empty; the name `Tiny-4bit` contains 4bit"),
        "{}",
        remark(3)
    );
    assert!(remark(6).contains("there is no shape `Huge`"), "{}", remark(6));
    assert!(
        remark(7).contains("column `quant` is missing or empty"),
        "{}",
        remark(7)
    );
}

#[test]
fn unsupported_file_format_is_reported_with_remedy() {
    let message = |table: &[u8]| format!("{:#}", predict(table).unwrap_err());
    let (commas, good) = (HEADER, GOOD);
    for (separator, words) in [(";", "uses semicolons"), ("\t", "uses tabs")] {
        let table = lines(&[commas, good]);
        let table = String::from_utf8(table).unwrap().replace(',', separator);
        assert!(message(table.as_bytes()).contains(words));
    }
    let wide: Vec<u8> = "\u{feff}chip".encode_utf16().flat_map(u16::to_le_bytes).collect();
    assert!(message(&wide).contains("save it as UTF-8"));
}
