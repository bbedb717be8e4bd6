//! What a guest's kernel must not say.

/// Marks of a kernel that is not well, as they appear in its log.
const SYMPTOMS: [&str; 18] = [
    "BUG:",
    "Oops",
    "WARNING: CPU",
    "WARNING: kernel/",
    "WARNING: drivers/",
    "WARNING: net/",
    "WARNING: mm/",
    "WARNING: possible",
    "Call Trace:",
    "cut here ]",
    "general protection fault",
    "blocked for more than",
    "self-detected stall",
    "detected stalls",
    "Kernel panic",
    "UBSAN:",
    "KASAN:",
    "swiotlb buffer is full",
];

/// Lines of a kernel log that show that something is wrong, with what follows them; `expected` are
/// parts of lines that a test provokes on purpose.
pub fn symptoms(log: &str, expected: &[&str]) -> Vec<String> {
    let lines: Vec<&str> = log.lines().collect();
    let mut found = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let line = lines[at];
        if SYMPTOMS.iter().any(|symptom| line.contains(symptom))
            && !expected.iter().any(|part| line.contains(part))
        {
            let end = (at + 40).min(lines.len());
            found.push(lines[at..end].join("\n"));
            at = end;
        } else {
            at += 1;
        }
    }
    found
}

/// Lines of our module at the level "err" or worse, out of `dmesg --level`; `expected` are parts
/// of lines that a test provokes on purpose.
pub fn module_errors<'a>(log: &'a str, expected: &[&str]) -> Vec<&'a str> {
    log.lines()
        .filter(|line| line.contains("tbrdma"))
        .filter(|line| !expected.iter().any(|part| line.contains(part)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_is_found_with_its_trace_once() {
        let log = "[1] fine\n[2] ------------[ cut here ]------------\n[2] WARNING: CPU: 0 PID: 1\n[2] Call Trace:\n";
        let found = symptoms(log, &[]);
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("PID: 1"));
        assert!(symptoms("[1] tbrdma: version 0.1.0 is ready\n", &[]).is_empty());
    }

    #[test]
    fn expected_symptoms_are_left_out_and_no_others() {
        let log = "[1] thunderbolt 0: swiotlb buffer is full (sz: 4096)\n[2] BUG: other\n";
        let found = symptoms(log, &["swiotlb buffer is full"]);
        assert_eq!(found, ["[2] BUG: other"]);
    }

    #[test]
    fn expected_errors_are_left_out() {
        let log = "[1] tbrdma: no memory for 4096\n[2] tbrdma: other\n[3] usb: error\n";
        assert_eq!(module_errors(log, &["no memory"]), ["[2] tbrdma: other"]);
    }
}
