//! Parser of Macs on the command line: `2 x M4 16Gi`, `M4 Pro/20 48Gi disk=200Gi 90W @ 2199`;
//! several are separated by commas.

use anyhow::{Context, anyhow};

use rooflet_api::v1alpha1::{MacSpec, OfferSpec};

/// Format hint for error messages.
const FORM: &str = "use the form `2 x M4 Pro/20 48Gi disk=200Gi 90W @ 2199`; count, GPU cores, disk, watts and price are optional";

/// Parses a fleet: Macs separated by commas.
pub(super) fn fleet(text: &str) -> anyhow::Result<Vec<MacSpec>> {
    let macs = text.split(',').map(str::trim);
    macs.map(|mac| Ok(self::mac(mac).with_context(|| format!("`{mac}`"))?.1))
        .collect()
}

/// Parses an offer. Its count is the maximum number available.
pub(super) fn offer(text: &str) -> anyhow::Result<OfferSpec> {
    let (counted, mac) = mac(text.trim()).with_context(|| format!("`{text}`"))?;
    if counted && mac.count == 0 {
        return Err(anyhow!("`{text}`: the count must be 1 or more; {FORM}"));
    }
    Ok(OfferSpec {
        name: None,
        chip: mac.chip,
        gpu_cores: mac.gpu_cores,
        memory: mac.memory,
        disk: mac.disk,
        available: counted.then_some(mac.count),
        price: mac.price,
        watts: mac.watts,
    })
}

/// Formats a Mac for error messages.
pub(super) fn shown(chip: &str, gpu_cores: Option<u32>, memory: &str, disk: Option<&str>) -> String {
    let cores = gpu_cores.map_or(String::new(), |cores| format!("/{cores}"));
    let disk = disk.map_or(String::new(), |disk| format!(" disk={disk}"));
    format!("{chip}{cores} {memory}{disk}")
}

/// Parses one Mac. The first value is true if the text contains a count.
fn mac(text: &str) -> anyhow::Result<(bool, MacSpec)> {
    let (text, price) = match text.split_once('@') {
        Some((text, price)) => (text.trim(), Some(number(price, "price")?)),
        None => (text, None),
    };
    let (count, text) = match counted(text) {
        Some((count, text)) => {
            let parsed = count.parse::<u32>();
            let count = parsed.map_err(|_| anyhow!("the count `{count}` must be a whole number; {FORM}"))?;
            (Some(count), text)
        }
        None => (None, text),
    };
    let mut words: Vec<&str> = text.split_whitespace().collect();
    let watts = match words.last().and_then(|word| word.strip_suffix(['W', 'w'])) {
        Some(watts) => {
            words.pop();
            Some(number(watts, "power in watts")?)
        }
        None => None,
    };
    let disk = words
        .last()
        .and_then(|word| word.strip_prefix("disk="))
        .map(str::to_owned);
    if disk.is_some() {
        words.pop();
    }
    // `16 GB` on a data sheet means `16Gi`, because memory sizes are powers of two.
    let memory = match words.as_slice() {
        [.., size, "GB" | "GiB" | "Gi"] => {
            let size = format!("{size}Gi");
            words.truncate(words.len() - 2);
            size
        }
        [_, .., size] => {
            let size = size.trim_end_matches('B').trim_end_matches('i');
            let size = match size.strip_suffix('G') {
                Some(number) => format!("{number}Gi"),
                None => (*words.last().unwrap_or(&"")).to_owned(),
            };
            words.pop();
            size
        }
        [] | [_] => return Err(anyhow!("chip and memory are required; {FORM}")),
    };
    let chip = words.join(" ");
    let (chip, gpu_cores) = match chip.split_once('/') {
        Some((chip, cores)) => {
            let parsed = cores.trim().parse();
            let cores = parsed.map_err(|_| anyhow!("`{cores}` is not a number of GPU cores; {FORM}"))?;
            (chip.trim().to_owned(), Some(cores))
        }
        None => (chip, None),
    };
    if chip.is_empty() {
        return Err(anyhow!("the chip is missing; {FORM}"));
    }
    let mac = MacSpec {
        name: None,
        chip,
        gpu_cores,
        memory,
        disk,
        count: count.unwrap_or(1),
        price,
        watts,
    };
    Ok((count.is_some(), mac))
}

/// Splits `2 x`, `2x` or `2 ×` from the start of a text.
fn counted(text: &str) -> Option<(&str, &str)> {
    let (count, rest) = if text.starts_with(|c: char| c.is_ascii_digit() || c == '-') {
        text.split_once(['x', '×'])?
    } else {
        text.split_once(" x ").or_else(|| text.split_once('×'))?
    };
    Some((count.trim(), rest.trim()))
}

fn number(text: &str, what: &str) -> anyhow::Result<f64> {
    let text = text.trim();
    let number: Result<f64, _> = text.parse();
    let number = number.ok().filter(|number| number.is_finite() && *number >= 0.0);
    number.ok_or_else(|| anyhow!("the {what} `{text}` must be a number of 0 or more; {FORM}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_usual_notations() {
        let read = |text: &str| {
            let macs = fleet(text).unwrap();
            let [mac] = macs.as_slice() else {
                panic!("{macs:?}")
            };
            let MacSpec {
                chip,
                gpu_cores,
                memory,
                count,
                price,
                watts,
                ..
            } = mac.clone();
            (count, chip, gpu_cores, memory, price, watts)
        };
        let mini = |count, price, watts| (count, "M4".to_owned(), None, "16Gi".to_owned(), price, watts);
        for (text, expected) in [
            ("M4 16Gi", mini(1, None, None)),
            ("2 x M4 16Gi @ 599", mini(2, Some(599.0), None)),
            ("2x M4 16GB", mini(2, None, None)),
            ("2 × M4 16 GB", mini(2, None, None)),
            ("M4 16G 38.5W @ 0", mini(1, Some(0.0), Some(38.5))),
        ] {
            assert_eq!(read(text), expected, "{text}");
        }
        let large = ("M4 Max".to_owned(), Some(40), "128Gi".to_owned());
        let (count, chip, cores, memory, ..) = read("3 x M4 Max/40 128Gi");
        assert_eq!((count, (chip, cores, memory)), (3, large));
        assert_eq!(fleet("2 x M4 16Gi, M4 Pro/20 48Gi").unwrap().len(), 2);
        let with_disk = fleet("M4 16 GB disk=200Gi 40W @ 599").unwrap().remove(0);
        assert_eq!(
            (with_disk.memory.as_str(), with_disk.disk.as_deref()),
            ("16Gi", Some("200Gi"))
        );
        assert_eq!((with_disk.watts, with_disk.price), (Some(40.0), Some(599.0)));
    }

    #[test]
    fn errors_include_the_format_hint() {
        for bad in [
            "",
            "M4",
            "16Gi",
            "two x M4 16Gi",
            "-1 x M4 16Gi",
            "1.5 x M4 16Gi",
            "M4 16Gi @ cheap",
            "M4 16Gi @ -1",
            "M4 16Gi @ NaN",
            "M4 16Gi @ inf",
            "M4 16Gi -5W",
            "M4/many 16Gi",
            "/20 48Gi",
        ] {
            let message = format!("{:#}", fleet(bad).unwrap_err());
            assert!(message.contains("use the form"), "{bad}: {message}");
        }
        assert!(offer("0 x M4 16Gi").is_err());
        assert_eq!(offer("3 x M4 16Gi").unwrap().available, Some(3));
        assert_eq!(offer("M4 16Gi").unwrap().available, None);
    }
}
