//! The debug dumps of waiting and executing requests, for administrators of a busy server:
//! `/debug/api_priority_and_fairness/dump_priority_levels`, `dump_queues` and `dump_requests`.
//!
//! The columns are upstream's, spelling included. A dump must never delay the requests that it shows: each level is
//! locked once, for as long as the copy takes.

use super::FlowControl;
use super::level::{Counts, LevelDump, RequestDump};

const PREFIX: &str = "/debug/api_priority_and_fairness/";

/// The minimum width of a column, and the space between two.
const MIN_WIDTH: usize = 8;
const PADDING: usize = 1;

/// Returns the table of a path, if there is one.
pub fn dump(control: &FlowControl, path: &str, details: bool) -> Option<String> {
    let levels = control.dump();
    let rows = match path.strip_prefix(PREFIX)? {
        "dump_priority_levels" => priority_levels(&levels),
        "dump_queues" => queues(&levels),
        "dump_requests" => requests(&levels, details),
        _ => return None,
    };
    Some(table(&rows))
}

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

fn priority_levels(levels: &[(String, LevelDump)]) -> Vec<Vec<String>> {
    let header = "PriorityLevelName ActiveQueues IsIdle IsQuiescing WaitingRequests ExecutingRequests \
                  DispatchedRequests RejectedRequests TimedoutRequests CancelledRequests";
    let row = |(name, level): &(String, LevelDump)| {
        let waiting: usize = level.queues.iter().map(|queue| queue.waiting.len()).sum();
        let active = level.queues.iter().filter(|queue| !queue.waiting.is_empty()).count();
        let executing = level.executing.len();
        let idle = waiting == 0 && executing == 0;
        let sum = |number: fn(&Counts) -> u64| level.counts.iter().map(|(_, counts)| number(counts)).sum::<u64>();
        let numbers = [sum(|c| c.dispatched), sum(|c| c.rejected), sum(|c| c.timed_out), sum(|c| c.cancelled)];
        let state = [name.clone(), active.to_string(), idle.to_string(), "false".to_owned()];
        let now = [waiting.to_string(), executing.to_string()];
        state.into_iter().chain(now).chain(numbers.map(|number| number.to_string())).collect()
    };
    [words(header)].into_iter().chain(levels.iter().map(row)).collect()
}

fn queues(levels: &[(String, LevelDump)]) -> Vec<Vec<String>> {
    let header = "PriorityLevelName Index PendingRequests ExecutingRequests SeatsInUse NextDispatchR \
                  InitialSeatsSum MaxSeatsSum TotalWorkSum";
    let mut rows = vec![words(header)];
    for (name, level) in levels {
        for (index, queue) in level.queues.iter().enumerate() {
            let seats: u32 = queue.waiting.iter().map(|request| request.seats).sum();
            let numbers = [index, queue.waiting.len(), queue.executing].map(|number| number.to_string());
            let mut row = vec![name.clone()];
            row.extend(numbers);
            row.extend([queue.seats_in_use.to_string(), seat_seconds(queue.next_start)]);
            row.extend([seats.to_string(), seats.to_string()]);
            row.push(seat_seconds(f64::from(seats) * super::queues::ESTIMATE));
            rows.push(row);
        }
    }
    rows
}

fn seat_seconds(value: f64) -> String {
    format!("{value:.8}ss")
}

fn requests(levels: &[(String, LevelDump)], details: bool) -> Vec<Vec<String>> {
    let mut header = words(
        "PriorityLevelName FlowSchemaName QueueIndex RequestIndexInQueue FlowDistingsher ArriveTime InitialSeats \
         FinalSeats AdditionalLatency StartTime",
    );
    if details {
        header.extend(words("UserName Verb APIPath Namespace Name APIVersion Resource SubResource"));
    }
    let mut rows = vec![header];
    for (name, level) in levels {
        let mut show = |queue: Option<usize>,
                        at: Option<usize>,
                        request: &RequestDump,
                        started: Option<jiff::Timestamp>| {
            let number = |number: Option<usize>| number.map_or_else(|| "-1".to_owned(), |number| number.to_string());
            let mut row = vec![name.clone(), request.schema.clone(), number(queue), number(at), request.flow.clone()];
            let started = started.map_or_else(|| "0001-01-01T00:00:00Z".to_owned(), |time| time.to_string());
            row.extend([
                request.arrived.to_string(),
                request.seats.to_string(),
                "0".to_owned(),
                "0s".to_owned(),
                started,
            ]);
            if details {
                row.extend(request.details.split('\n').map(str::to_owned));
            }
            rows.push(row);
        };
        for (index, queue) in level.queues.iter().enumerate() {
            queue.waiting.iter().enumerate().for_each(|(at, request)| show(Some(index), Some(at), request, None));
            let of_queue = level.executing.iter().filter(|(from, ..)| *from == Some(index));
            of_queue.for_each(|(from, request, started)| show(*from, None, request, Some(*started)));
        }
        let at_once = level.executing.iter().filter(|(from, ..)| from.is_none());
        at_once.for_each(|(_, request, started)| show(None, None, request, Some(*started)));
    }
    rows
}

/// Formats cells in columns, with a comma after each but the last.
fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count() + 1 + PADDING);
        cells.max().unwrap_or(0).max(MIN_WIDTH)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut table = String::new();
    for row in rows {
        for (cell, width) in row.iter().zip(&widths).take(columns - 1) {
            table.push_str(&format!("{:<width$}", format!("{cell},")));
        }
        table.push_str(row.last().map_or("", String::as_str));
        table.push('\n');
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell_and_no_narrower_than_eight() {
        let rows = [words("Name Index Last"), words("workload-low 0 7")];
        assert_eq!(table(&rows), "Name,         Index,  Last\nworkload-low, 0,      7\n");
    }
}
