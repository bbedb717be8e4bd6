// SPDX-License-Identifier: GPL-2.0-only
/* One read-only debugfs file whose text the module writes piece by piece. */
#include <linux/debugfs.h>
#include <linux/err.h>
#include <linux/module.h>
#include <linux/seq_file.h>
#include "debugfs.h"

static int (*show_state)(void *file, void *data);

static int state_file_show(struct seq_file *file, void *unused)
{
	return show_state(file, file->private);
}
DEFINE_SHOW_ATTRIBUTE(state_file);

/* Readers can only be root: the file tells of other machines. NULL without debugfs. */
void *tbrdma_debugfs_create(int (*show)(void *file, void *data), void *data)
{
	struct dentry *dir = debugfs_create_dir(KBUILD_MODNAME, NULL);

	if (IS_ERR_OR_NULL(dir))
		return NULL;
	show_state = show;
	debugfs_create_file("state", 0400, dir, data, &state_file_fops);
	return dir;
}

/* Returns after the last reader has left @show. */
void tbrdma_debugfs_remove(void *dir)
{
	debugfs_remove(dir);
}

int tbrdma_debugfs_write(void *file, const void *text, size_t len)
{
	return seq_write(file, text, len);
}
