// SPDX-License-Identifier: GPL-2.0-only
/*
 * Printing.
 *
 * The kernel crate hands core::fmt::Arguments to printk's "%pA", and vmlinux decodes them with the layout
 * of the rustc that built vmlinux. Ours may be another, and then that is a wild pointer; a kernel without
 * CONFIG_RUST warns. Therefore the link wraps every C function to which the kernel crate passes "%pA"
 * (ld --wrap in Kbuild): the text is made here, by rust_fmt_argument() of the kernel crate in this very
 * module, and the kernel gets "%s". Our own messages come ready made from src/print.rs.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt
#include <linux/bug.h>
#include <linux/dev_printk.h>
#include <linux/dynamic_debug.h>
#include <linux/jiffies.h>
#include <linux/printk.h>
#include <linux/seq_file.h>
#include <linux/string.h>
#include "print.h"

/* Longest text of a message that comes from the kernel crate; the rest is cut off. */
#define TEXT_MAX 512

/* The kernel crate's; the header may define it away. */
#undef rust_fmt_argument
char *rust_fmt_argument(char *buf, char *end, const void *arguments);

int __real__printk(const char *fmt, ...);
void __real__dev_printk(const char *level, const struct device *dev, const char *fmt, ...);
void __real_seq_printf(struct seq_file *m, const char *fmt, ...);
int __wrap__printk(const char *fmt, ...);
void __wrap__dev_printk(const char *level, const struct device *dev, const char *fmt, ...);
void __wrap_seq_printf(struct seq_file *m, const char *fmt, ...);

static const char *to_text(char buf[TEXT_MAX], const void *arguments)
{
	char *last = buf + TEXT_MAX - 1;
	char *end = rust_fmt_argument(buf, last, arguments);

	/* As with snprintf(), the end that the text would have needed is returned. */
	*(end < last ? end : last) = '\0';
	return buf;
}

/* The kernel crate has three formats with %pA: "\001n%s: %pA", "\001c%pA" and "%pA". */
int __wrap__printk(const char *fmt, ...)
{
	char level[3] = "";
	char buf[TEXT_MAX];
	const char *name;
	const char *rest = fmt;
	va_list ap;
	int ret;

	va_start(ap, fmt);
	if (fmt[0] == KERN_SOH_ASCII && fmt[1]) {
		level[0] = fmt[0];
		level[1] = fmt[1];
		rest += 2;
	}
	if (!strcmp(rest, "%s: %pA")) {
		name = va_arg(ap, const char *);
		ret = __real__printk("%s%s: %s", level, name, to_text(buf, va_arg(ap, const void *)));
	} else if (!strcmp(rest, "%pA")) {
		ret = __real__printk("%s%s", level, to_text(buf, va_arg(ap, const void *)));
	} else if (WARN_ONCE(strstr(rest, "%pA"), "unknown format %s\n", rest)) {
		ret = 0;
	} else {
		ret = vprintk(fmt, ap);
	}
	va_end(ap);
	return ret;
}

void __wrap__dev_printk(const char *level, const struct device *dev, const char *fmt, ...)
{
	struct va_format vaf = { .fmt = fmt };
	char buf[TEXT_MAX];
	va_list ap;

	va_start(ap, fmt);
	if (!strcmp(fmt, "%pA")) {
		__real__dev_printk(level, dev, "%s", to_text(buf, va_arg(ap, const void *)));
	} else {
		vaf.va = &ap;
		__real__dev_printk(level, dev, "%pV", &vaf);
	}
	va_end(ap);
}

void __wrap_seq_printf(struct seq_file *m, const char *fmt, ...)
{
	char buf[TEXT_MAX];
	va_list ap;

	va_start(ap, fmt);
	if (!strcmp(fmt, "%pA"))
		__real_seq_printf(m, "%s", to_text(buf, va_arg(ap, const void *)));
	else
		seq_vprintf(m, fmt, ap);
	va_end(ap);
}

/* level: a digit as in KERN_ERR; text: one line without newline. */
void tbrdma_print(char level, const char *text, size_t len)
{
	const char prefix[3] = { KERN_SOH_ASCII, level, '\0' };

	__real__printk("%s" KBUILD_MODNAME ": %.*s\n", prefix, (int)len, text);
}

/* Debug messages are switched with "module tbrdma +p" or "func tbrdma_debug_enabled +p" in dynamic_debug/control. */
bool tbrdma_debug_enabled(void)
{
#if defined(CONFIG_DYNAMIC_DEBUG) || (defined(CONFIG_DYNAMIC_DEBUG_CORE) && defined(DYNAMIC_DEBUG_MODULE))
	DEFINE_DYNAMIC_DEBUG_METADATA(site, "all debug messages of tbrdma");

	return DYNAMIC_DEBUG_BRANCH(site);
#else
	return false;
#endif
}

/* Ticks of a second. */
unsigned long tbrdma_print_second(void)
{
	return HZ;
}

unsigned long tbrdma_print_now(void)
{
	return jiffies;
}
