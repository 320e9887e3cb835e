//! Renders the report of the controller's benchmark.

use std::fmt::Write;
use std::time::Duration;

use super::super::machine::Machine;
use super::super::report;
use super::super::targets::{TargetResult, format_megabytes, memory_target};
use super::{ControllerBenchArgs, ControllerFigures};

const METHOD: &str = "\
## What is measured

`mainstay-controller` runs as a user runs it: one replica without leader election, with one kube-apiserver and its etcd on the same machine. Every `Etcd` has a backup store. The
benchmark creates pods and PVCs for the StatefulSets, renews the Leases, and reports a delta snapshot of each `Etcd` every five minutes. No pod runs, and no etcd
answers. The resources are in ten namespaces.

- **Idle**: writes of all kinds that a controller writes, as counted by the API server, minus the Lease renewals of the benchmark.
- **Spec change to effect**: an annotation of the client Service, set on many resources at once. The time ends when a watch of the benchmark receives the changed Service. It
  includes two answers of the API server and the delivery of the event. *Without a pause*, the next resources change as soon as the last ones have taken effect.
- **Cold start**: from the start of the process until every cluster was reconciled without a change.

Memory is the maximum resident set of the process. 1 MB is 1 000 000 bytes. etcd-druid, calculated from its code, would write about 67 statuses a second at this size.
";

pub(super) fn render(
    args: &ControllerBenchArgs,
    machine: &Machine,
    figures: &ControllerFigures,
) -> anyhow::Result<String> {
    let mut page = format!(
        "# Benchmarks of the controller\n\n`make bench-controller` writes this page. It measures one controller with {} Etcds. Figures are of one run.\n\n",
        args.etcds
    );
    writeln!(page, "| | |\n| --- | --- |\n| date | {} |", args.date)?;
    report::write_machine(&mut page, machine)?;
    writeln!(page, "| resources | {} of 3 members |", args.etcds)?;
    page.push_str("\n## Targets\n\n");
    report::write_targets(&mut page, &evaluate_targets(args, figures))?;
    write_figures(&mut page, args, figures)?;
    page.push('\n');
    page.push_str(METHOD);
    Ok(page)
}

fn evaluate_targets(args: &ControllerBenchArgs, figures: &ControllerFigures) -> Vec<TargetResult> {
    let data = format!("{} Etcds", args.etcds);
    let writes: u64 = figures.idle_writes.iter().map(|(_, count)| count).sum();
    #[expect(clippy::cast_precision_loss, reason = "a rate needs three digits")]
    let rate = writes as f64 * 60.0 / figures.idle_time.as_secs_f64();
    let of_changes = |what: &str, sorted: &[Duration]| {
        let [_, p99, _] = percentiles(sorted);
        let what = format!("spec change to effect, p99, {} {what}", args.changes);
        duration_target(&data, &what, p99, 1.0)
    };
    let peak = figures.peak_bytes.into_iter().max().unwrap_or_default();
    vec![
        TargetResult {
            subject: data.clone(),
            metric: "writes per minute when idle".to_owned(),
            target: "0".to_owned(),
            measured: format!("{rate:.1}"),
            is_met: writes == 0,
        },
        memory_target(&data, "peak memory", peak, 128_000_000),
        of_changes("at once", &figures.change_latencies),
        of_changes("at once, without a pause", &figures.unpaced_latencies),
        duration_target(&data, "cold start to idle", figures.cold_start, 60.0),
    ]
}

fn duration_target(data: &str, what: &str, measured: Duration, limit: f64) -> TargetResult {
    let measured = measured.as_secs_f64();
    TargetResult {
        subject: data.to_owned(),
        metric: what.to_owned(),
        target: format!("< {limit} s"),
        measured: format!("{measured:.3} s"),
        is_met: measured < limit,
    }
}

/// p50, p99 and max.
fn percentiles(sorted: &[Duration]) -> [Duration; 3] {
    let at = |percent: usize| {
        let index = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
        sorted.get(index).copied().unwrap_or(Duration::MAX)
    };
    [at(50), at(99), at(100)]
}

fn write_figures(
    page: &mut String,
    args: &ControllerBenchArgs,
    figures: &ControllerFigures,
) -> anyhow::Result<()> {
    let [first, second] = figures.peak_bytes.map(format_megabytes);
    writeln!(page, "\n## Figures\n\n| | |\n| --- | --- |")?;
    writeln!(
        page,
        "| all clusters created, from the start of the controller | {:.0} s |",
        figures.creation_time.as_secs_f64()
    )?;
    writeln!(
        page,
        "| peak memory while they are created; of a controller started afterwards | {first}; {second} |"
    )?;
    writeln!(
        page,
        "| writes of the controller started afterwards, until it is idle | {} |",
        figures.cold_start_writes
    )?;
    writeln!(
        page,
        "| idle: duration, Lease renewals by the benchmark, CPU time | {:.0} s, {}, {:.2} s |",
        figures.idle_time.as_secs_f64(),
        figures.renewals,
        figures.idle_cpu_seconds
    )?;
    for (resource, count) in &figures.idle_writes {
        writeln!(page, "| idle: writes of {resource} | {count} |")?;
    }
    for (sorted, how) in [
        (&figures.change_latencies, ""),
        (&figures.unpaced_latencies, ", without a pause"),
    ] {
        let [p50, p99, max] = percentiles(sorted).map(|span| span.as_secs_f64());
        writeln!(
            page,
            "| {} changes, {} at once{how}: p50, p99, max | {p50:.3} s, {p99:.3} s, {max:.3} s |",
            sorted.len(),
            args.changes
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p99_of_a_hundred_values_is_the_99th() {
        let sorted: Vec<Duration> = (1..=100).map(Duration::from_secs).collect();
        assert_eq!(percentiles(&sorted), [50, 99, 100].map(Duration::from_secs));
        assert_eq!(percentiles(&[]), [Duration::MAX; 3]);
    }
}
