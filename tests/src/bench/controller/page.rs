//! The report of the controller's bench.

use std::fmt::Write;
use std::time::Duration;

use super::super::claims::{TargetResult, memory_target, format_megabytes};
use super::super::machine::Machine;
use super::super::report;
use super::{ControllerBenchArgs, ControllerFigures};

const METHOD: &str = "\
## What is measured

`mainstay-controller` as a user runs it, one replica without leader election, with one kube-apiserver and its etcd on the same machine, which the
controller and the bench share. Every Etcd has a backup store. StatefulSets get pods and claims, and Leases are held and renewed, by the bench, which
also tells of a delta snapshot of each Etcd every five minutes; no pod runs, and no etcd is behind the pods' addresses. Resources are in ten namespaces.

* **At rest**: writes are those of all kinds a controller writes, as the API server counted them, less the renewals of Leases the bench made.
* **A change** is an annotation of the clients' Service, given to many resources at once. It is acted on when a watch of the bench sees it on the
  Service; the time counts from before the change is sent, so two answers of the API server and the delivery of an event are part of it. The next
  ones change once the statuses tell of the last; *without a pause*, they change as soon as the last were acted on, while the controller still
  writes their statuses.
* **Cold start** is from the start of the process until it has looked at every cluster and found nothing to do.

Memory is the largest resident set the kernel saw in the life of the process. 1 MB is 1 000 000 bytes. etcd-druid, counted from its code, would
write about 67 statuses a second at this size.
";

/// The whole page.
pub(super) fn render(
    args: &ControllerBenchArgs,
    machine: &Machine,
    figures: &ControllerFigures,
) -> anyhow::Result<String> {
    let mut page = String::from(
        "# Benchmarks of the controller\n\nWritten by `make bench-controller`; figures are of one run.\n\n",
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
        let [_, most, _] = percentiles(sorted);
        let what = format!("a change is acted on, 99 of 100, {} {what}", args.changes);
        duration_target(&data, &what, most, 1.0)
    };
    let peak = figures.peak_bytes.into_iter().max().unwrap_or_default();
    vec![
        TargetResult {
            subject: data.clone(),
            metric: "writes a minute at rest".to_owned(),
            target: "0".to_owned(),
            measured: format!("{rate:.1}"),
            is_met: writes == 0,
        },
        memory_target(&data, "peak memory", peak, 128_000_000),
        of_changes("at once", &figures.change_latencies),
        of_changes("at once, without a pause", &figures.unpaced_latencies),
        duration_target(&data, "cold start to steady", figures.cold_start, 60.0),
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

/// In the middle, 99 of 100, at worst.
fn percentiles(sorted: &[Duration]) -> [Duration; 3] {
    let at = |percent: usize| {
        let index = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
        sorted.get(index).copied().unwrap_or(Duration::MAX)
    };
    [at(50), at(99), at(100)]
}

fn write_figures(page: &mut String, args: &ControllerBenchArgs, figures: &ControllerFigures) -> anyhow::Result<()> {
    let [first, second] = figures.peak_bytes.map(format_megabytes);
    writeln!(page, "\n## Figures\n\n| | |\n| --- | --- |")?;
    writeln!(
        page,
        "| all clusters made, from the start of the controller | {:.0} s |",
        figures.creation_time.as_secs_f64()
    )?;
    writeln!(
        page,
        "| peak memory while they are made; of the one started after that | {first}; {second} |"
    )?;
    writeln!(
        page,
        "| writes of the one started after that, until it is steady | {} |",
        figures.cold_start_writes
    )?;
    writeln!(
        page,
        "| at rest: watched for, renewals by the bench, processor time | {:.0} s, {}, {:.2} s |",
        figures.idle_time.as_secs_f64(),
        figures.renewals,
        figures.idle_cpu_seconds
    )?;
    for (resource, count) in &figures.idle_writes {
        writeln!(page, "| at rest: writes of {resource} | {count} |")?;
    }
    for (sorted, how) in [
        (&figures.change_latencies, ""),
        (&figures.unpaced_latencies, ", without a pause"),
    ] {
        let [middle, most, worst] = percentiles(sorted).map(|span| span.as_secs_f64());
        writeln!(
            page,
            "| {} changes, {} at once{how}: in the middle, 99 of 100, at worst | {middle:.3} s, {most:.3} s, {worst:.3} s |",
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
    fn of_a_hundred_the_last_but_one_counts() {
        let sorted: Vec<Duration> = (1..=100).map(Duration::from_secs).collect();
        assert_eq!(percentiles(&sorted), [50, 99, 100].map(Duration::from_secs));
        assert_eq!(percentiles(&[]), [Duration::MAX; 3]);
    }
}
