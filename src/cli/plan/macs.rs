//! Macs as they are written on the command line: `2 x M4 16Gi`, `M4 Pro/20 48Gi @ 2199`; several with commas.

use anyhow::{Context, anyhow};

use crate::api::v1alpha1::{MacSpec, OfferSpec};

/// A fleet, Macs with commas between.
pub(super) fn fleet(text: &str) -> anyhow::Result<Vec<MacSpec>> {
    let macs = text.split(',').map(str::trim);
    macs.map(|mac| self::mac(mac).with_context(|| format!("`{mac}`")))
        .collect()
}

/// One offer; its count is how many can be had.
pub(super) fn offer(text: &str) -> anyhow::Result<OfferSpec> {
    let counted = text.split_once(" x ").is_some();
    let mac = mac(text.trim()).with_context(|| format!("`{text}`"))?;
    Ok(OfferSpec {
        name: None,
        chip: mac.chip,
        gpu_cores: mac.gpu_cores,
        memory: mac.memory,
        available: if counted { mac.count } else { 100 },
        price: mac.price,
        watts: None,
    })
}

fn mac(text: &str) -> anyhow::Result<MacSpec> {
    let form = "write it as `2 x M4 Pro/20 48Gi @ 2199`: count, GPU cores and price may be left out";
    let (text, price) = match text.split_once('@') {
        Some((text, price)) => {
            let price = price.trim();
            let price: f64 = price
                .parse()
                .with_context(|| format!("the price `{price}` is no number; {form}"))?;
            (text.trim(), Some(price).filter(|price| *price >= 0.0))
        }
        None => (text, None),
    };
    let (count, text) = match text.split_once(" x ") {
        Some((count, text)) => {
            let count = count.trim();
            let count = count
                .parse()
                .with_context(|| format!("the count `{count}` is no number; {form}"))?;
            (count, text.trim())
        }
        None => (1, text),
    };
    let (chip, memory) = text
        .rsplit_once(' ')
        .ok_or_else(|| anyhow!("chip and memory are needed; {form}"))?;
    let (chip, gpu_cores) = match chip.split_once('/') {
        Some((chip, cores)) => {
            let cores = cores
                .parse()
                .with_context(|| format!("`{cores}` is no count of GPU cores; {form}"))?;
            (chip, Some(cores))
        }
        None => (chip, None),
    };
    Ok(MacSpec {
        name: None,
        chip: chip.trim().to_owned(),
        gpu_cores,
        memory: memory.to_owned(),
        count,
        price,
        watts: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn macs_are_read_as_people_write_them() {
        let macs = fleet("2 x M4 16Gi @ 599, M4 Pro/20 48Gi").unwrap();
        assert_eq!(
            (macs[0].count, macs[0].chip.as_str(), macs[0].price),
            (2, "M4", Some(599.0))
        );
        assert_eq!(
            (macs[1].count, macs[1].gpu_cores, macs[1].memory.as_str()),
            (1, Some(20), "48Gi")
        );
        for bad in ["M4", "two x M4 16Gi", "M4 16Gi @ cheap", "M4/many 16Gi"] {
            assert!(
                format!("{:#}", fleet(bad).unwrap_err()).contains("write it as"),
                "{bad}"
            );
        }
    }
}
