//! Values computed at each scrape: snapshot ages, and the kernel's statistics of this process.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::sync::Arc;

use nix::sys::resource::{UsageWho, getrusage};
use prometheus::Result;
use prometheus::core::{Collector, Desc};
use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};

use super::registrar::{MetricDesc, Registrar};

/// Computes a value per label value; without a label, one value with the label value "".
type ValueFn = dyn Fn() -> Vec<(&'static str, f64)> + Send + Sync;

/// One family of series, computed at each scrape.
#[derive(Clone)]
pub(super) struct ScrapedMetric {
    desc: Desc,
    metric_type: MetricType,
    label: Option<&'static str>,
    values: Arc<ValueFn>,
}

impl fmt::Debug for ScrapedMetric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scraped")
            .field("name", &self.desc.fq_name)
            .finish_non_exhaustive()
    }
}

impl ScrapedMetric {
    /// A gauge per value of one label.
    pub(super) fn gauges(
        (name, help): MetricDesc<'_>,
        label: &'static str,
        values: impl Fn() -> Vec<(&'static str, f64)> + Send + Sync + 'static,
    ) -> Result<Self> {
        let labels = vec![label.to_owned()];
        Ok(Self {
            desc: Desc::new(name.to_owned(), help.to_owned(), labels, HashMap::new())?,
            metric_type: MetricType::GAUGE,
            label: Some(label),
            values: Arc::new(values),
        })
    }

    /// One series without labels.
    fn single_value(
        (name, help): MetricDesc<'_>,
        metric_type: MetricType,
        value: fn() -> Option<f64>,
    ) -> Result<Self> {
        Ok(Self {
            desc: Desc::new(name.to_owned(), help.to_owned(), Vec::new(), HashMap::new())?,
            metric_type,
            label: None,
            values: Arc::new(move || value().map(|value| ("", value)).into_iter().collect()),
        })
    }

    fn build_metric(&self, word: &str, value: f64) -> Metric {
        let pair = self.label.map(|name| {
            let mut pair = LabelPair::default();
            pair.set_name(name.to_owned());
            pair.set_value(word.to_owned());
            pair
        });
        let mut metric = Metric::from_label(pair.into_iter().collect());
        if self.metric_type == MetricType::COUNTER {
            let mut counter = Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        } else {
            let mut gauge = Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        }
        metric
    }
}

impl Collector for ScrapedMetric {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.desc]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let values = (self.values)();
        let metrics = values
            .into_iter()
            .map(|(word, v)| self.build_metric(word, v));
        let mut family = MetricFamily::default();
        family.set_name(self.desc.fq_name.clone());
        family.set_help(self.desc.help.clone());
        family.set_field_type(self.metric_type);
        family.set_metric(metrics.collect());
        vec![family]
    }
}

const CPU: MetricDesc = (
    "process_cpu_seconds_total",
    "CPU time of this process in seconds, user and system.",
);
const RESIDENT: MetricDesc = (
    "process_resident_memory_bytes",
    "Resident memory of this process in bytes.",
);
const PEAK: MetricDesc = (
    "mainstay_peak_resident_memory_bytes",
    "Peak resident memory of this process in bytes.",
);
const RECEIVED: MetricDesc = (
    "etcdbr_network_received_bytes",
    "Bytes received by the pod's network interfaces, without loopback.",
);
const SENT: MetricDesc = (
    "etcdbr_network_transmitted_bytes",
    "Bytes sent by the pod's network interfaces, without loopback.",
);

/// Registers the kernel's statistics. A value that cannot be read is left out of the scrape.
pub(super) fn register_process(register: &Registrar<'_>) -> Result<()> {
    let (counter, gauge) = (MetricType::COUNTER, MetricType::GAUGE);
    register.register(ScrapedMetric::single_value(CPU, counter, read_cpu_seconds)?)?;
    register.register(ScrapedMetric::single_value(RESIDENT, gauge, || {
        read_status_bytes("VmRSS:")
    })?)?;
    register.register(ScrapedMetric::single_value(PEAK, gauge, || {
        read_status_bytes("VmHWM:")
    })?)?;
    register.register(ScrapedMetric::single_value(RECEIVED, counter, || {
        read_network_bytes(0)
    })?)?;
    register.register(ScrapedMetric::single_value(SENT, counter, || {
        read_network_bytes(8)
    })?)?;
    Ok(())
}

fn read_cpu_seconds() -> Option<f64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF).ok()?;
    let seconds = |time: nix::sys::time::TimeVal| {
        to_f64(time.tv_sec()) + to_f64(time.tv_usec()) / 1_000_000.0
    };
    Some(seconds(usage.user_time()) + seconds(usage.system_time()))
}

/// A line of `/proc/self/status`, which is in kB.
fn read_status_bytes(field: &str) -> Option<f64> {
    parse_kilobytes(&fs::read_to_string("/proc/self/status").ok()?, field)
        .map(|kb| to_f64(kb) * 1024.0)
}

fn parse_kilobytes(status: &str, field: &str) -> Option<i64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    line.split_whitespace().next()?.parse().ok()
}

/// A column of `/proc/self/net/dev`, summed over all interfaces: 0 is bytes received, 8 is bytes sent.
fn read_network_bytes(column: usize) -> Option<f64> {
    sum_column(&fs::read_to_string("/proc/self/net/dev").ok()?, column).map(to_f64)
}

fn sum_column(devices: &str, column: usize) -> Option<i64> {
    let lines = devices.lines().filter_map(|line| line.split_once(':'));
    let external = lines.filter(|(name, _)| name.trim() != "lo");
    let bytes = external.map(|(_, fields)| {
        let field = fields.split_whitespace().nth(column)?;
        field.parse::<i64>().ok()
    });
    bytes.sum()
}

#[expect(
    clippy::cast_precision_loss,
    reason = "values above 2^53 may be rounded"
)]
fn to_f64(number: i64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_parsed_from_the_named_status_line() {
        let status = "Name:\tmainstay\nVmHWM:\t   20480 kB\nVmRSS:\t   10240 kB\n";
        assert_eq!(parse_kilobytes(status, "VmRSS:"), Some(10_240));
        assert_eq!(parse_kilobytes(status, "VmHWM:"), Some(20_480));
        assert_eq!(parse_kilobytes(status, "VmSwap:"), None);
    }

    #[test]
    fn network_bytes_are_summed_without_loopback() {
        let devices = "Inter-|   Receive | Transmit\n face |bytes packets\n    \
             lo: 900 1 0 0 0 0 0 0 900 1 0 0 0 0 0 0\n  \
             eth0: 100 1 0 0 0 0 0 0 30 1 0 0 0 0 0 0\n  \
             eth1:200 1 0 0 0 0 0 0 40 1 0 0 0 0 0 0\n";
        assert_eq!(
            (sum_column(devices, 0), sum_column(devices, 8)),
            (Some(300), Some(70))
        );
        assert_eq!(sum_column("eth0: 100 1", 8), None);
    }

    #[test]
    fn proc_reports_memory_cpu_and_network_of_this_process() {
        let resident = read_status_bytes("VmRSS:").unwrap();
        assert!(resident > 100_000.0, "{resident}");
        assert!(read_status_bytes("VmHWM:").unwrap() >= resident);
        assert!(read_cpu_seconds().unwrap() > 0.0);
        assert!(read_network_bytes(0).is_some());
    }
}
