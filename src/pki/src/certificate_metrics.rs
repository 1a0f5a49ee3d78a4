//! Metric of the certificates that a process uses.

use std::fmt;
use std::sync::{Arc, Mutex};

use rustls::sign::CertifiedKey;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::certificate_files::CertificateFiles;
use super::machine_tls::MachineTls;
use rooflet_base::metrics::{ComputedGauge, ComputedSample, Registry, Result};
use rooflet_base::mutex::lock;

const EXPIRY: &str = "rooflet_certificate_expiry_timestamp_seconds";

const GAUGES: &[ComputedGauge] = &[ComputedGauge {
    name: EXPIRY,
    help: "Time at which a certificate in use expires, in seconds since 1970: machine (issued by the fleet) and files (--tls-cert).",
    labels: &["certificate"],
}];

/// Returns the certificate in use. `None` before there is one.
type Source = Box<dyn Fn() -> Option<Arc<CertifiedKey>> + Send + Sync>;

/// Certificates of a process, which the metric shows. Clones share the certificates.
#[derive(Clone, Default)]
pub struct CertificateMetrics(Arc<Mutex<Vec<(&'static str, Source)>>>);

impl fmt::Debug for CertificateMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CertificateMetrics").finish_non_exhaustive()
    }
}

impl CertificateMetrics {
    pub fn register(&self, registry: &Registry) -> Result<()> {
        let sources = Arc::clone(&self.0);
        registry.register_computed(GAUGES, move || {
            let sample = |(certificate, source): &(&'static str, Source)| {
                Some(ComputedSample {
                    gauge: EXPIRY,
                    labels: vec![(*certificate).to_owned()],
                    value: not_after(&*source()?)?,
                })
            };
            lock(&sources).iter().filter_map(sample).collect()
        })
    }

    /// Adds the certificate of this machine.
    pub fn observe_machine(&self, tls: &Arc<MachineTls>) {
        let tls = Arc::clone(tls);
        lock(&self.0).push(("machine", Box::new(move || tls.own())));
    }

    /// Adds a certificate from files.
    pub fn observe_files(&self, files: &Arc<CertificateFiles>) {
        let files = Arc::clone(files);
        lock(&self.0).push(("files", Box::new(move || Some(files.current()))));
    }
}

/// Returns the end of the validity of the first certificate, in seconds since 1970.
fn not_after(pair: &CertifiedKey) -> Option<f64> {
    let (_, certificate) = X509Certificate::from_der(pair.cert.first()?).ok()?;
    Some(certificate.validity().not_after.timestamp() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Revocations;
    use rooflet_base::metrics::render;

    #[test]
    fn metric_follows_the_certificate_in_use() {
        let registry = Registry::new();
        let metrics = CertificateMetrics::default();
        metrics.register(&registry).expect("valid metrics");
        let tls = MachineTls::new(Revocations::default());
        metrics.observe_machine(&tls);
        assert!(!render(&registry).contains("machine\"} "), "no certificate yet");
        // `date -u -d 2026-04-01 +%s` and `date -u -d 2027-04-01 +%s`
        for (year, expect) in [(2026, "1775001600"), (2027, "1806537600")] {
            let mut params = rcgen::CertificateParams::default();
            params.not_after = rcgen::date_time_ymd(year, 4, 1);
            let key = rcgen::KeyPair::generate().expect("a key");
            let certificate = params.self_signed(&key).expect("a certificate").pem();
            tls.set_certificate(&certificate, &key.serialize_pem())
                .expect("a usable certificate");
            let line = format!("{EXPIRY}{{certificate=\"machine\"}} {expect}\n");
            assert!(render(&registry).contains(&line), "{}", render(&registry));
        }
    }
}
