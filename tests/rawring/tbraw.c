// SPDX-License-Identifier: GPL-2.0-only
/*
 * What a pair of DMA rings can do at most, as a yardstick for everything that runs on top of it.
 *
 * Both ends of a cable load this module. It uses the same calls, ring sizes and flags as tbrdma does, and
 * nothing else: no acknowledgements, no credits, no copies. End-to-end flow control keeps a sender from
 * overrunning the receiver.
 *
 * Measuring is started by writing to /sys/kernel/debug/tbraw/run, which returns when it is done; reading the
 * same file gives the result. The other end answers by itself.
 *
 *   pingpong SIZE MS   frames of SIZE bytes to and fro: "trips=N median_ns=N p99_ns=N" of half a round trip
 *   blast MS           frames of 4096 bytes, one way: "bytes=N ns=N", until the other end has counted them
 *   both MS            the same in both directions at once; the bytes of both together
 *
 * For kernels from 7.3 on. A measuring instrument: not for use outside the lab.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/debugfs.h>
#include <linux/dma-mapping.h>
#include <linux/ktime.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/sched/signal.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/sort.h>
#include <linux/thunderbolt.h>
#include <linux/uaccess.h>
#include <linux/workqueue.h>

static int hopid = 30;
module_param(hopid, int, 0444);
MODULE_PARM_DESC(hopid, "HopID of both directions; the same at both ends, and used by nobody else (30)");

static bool e2e = true;
module_param(e2e, bool, 0444);
MODULE_PARM_DESC(e2e, "end-to-end flow control (Y)");

/* As tbrdma's. */
#define RING_SIZE	1024
#define PDF_START	1

/* Without a frame for so long the other end is not there any more. */
#define SILENCE_NS	(2 * NSEC_PER_SEC)
/* The answering end goes back to its interrupt after this time. */
#define IDLE_NS		(20 * NSEC_PER_MSEC)
#define TRIPS_MAX	(1 << 17)

/* The protocol defined field that ends a frame says what it is. */
enum kind {
	PING = 2,	/* goes back as it came, as a PONG */
	PONG,
	DATA,
	BEGIN,		/* counting begins; one byte says whether the answering end sends, too */
	END,		/* of the data; COUNT is the answer */
	COUNT,		/* how many DATA frames have come, 8 bytes */
};

struct buf {
	struct ring_frame frame;
	void *page;
};

struct end {
	struct tb_xdomain *xd;
	struct tb_ring *tx, *rx;
	struct buf *tx_bufs, *rx_bufs;
	bool out_hop, in_hop, started, paths, leaving;
	/* Next buffer to be sent, and how many are in the ring. */
	unsigned int next, in_ring;
	/* Of whoever looks at the RX ring: the answering work or a measurement. */
	struct mutex lock;
	struct work_struct answer;
	struct dentry *dir;
	/* DATA frames that have come since BEGIN. */
	u64 counted;
	char result[128];
};

/* One cable is enough. */
static struct end *only;
static DEFINE_MUTEX(only_lock);
static struct workqueue_struct *queue;

static struct device *dma(struct end *end)
{
	return tb_ring_dma_device(end->tx);
}

/* A free buffer to be filled, or NULL. */
static struct buf *tx_buf(struct end *end)
{
	if (end->in_ring == RING_SIZE - 1)
		while (tb_ring_poll(end->tx))
			end->in_ring--;
	return end->in_ring < RING_SIZE - 1 ? &end->tx_bufs[end->next] : NULL;
}

static int tx(struct end *end, struct buf *buf, enum kind kind, size_t size)
{
	dma_sync_single_for_device(dma(end), buf->frame.buffer_phy, size, DMA_TO_DEVICE);
	/* In the field's 12 bits 4096 is 0, which is what means 4096. */
	buf->frame.size = size;
	buf->frame.sof = PDF_START;
	buf->frame.eof = kind;
	end->next = (end->next + 1) % RING_SIZE;
	end->in_ring++;
	return tb_ring_tx(end->tx, &buf->frame);
}

static bool stop(struct end *end)
{
	cond_resched();
	return READ_ONCE(end->leaving) || fatal_signal_pending(current);
}

/* Sends a frame that begins with `len` bytes of `head`, as soon as the ring takes it. */
static int tx_head(struct end *end, enum kind kind, size_t size, const void *head, size_t len)
{
	struct buf *buf = tx_buf(end);
	u64 since = buf ? 0 : ktime_get_ns();

	for (; !buf; buf = tx_buf(end)) {
		if (stop(end))
			return -EINTR;
		if (ktime_get_ns() - since > SILENCE_NS)
			return -ETIMEDOUT;
		cpu_relax();
	}
	memcpy(buf->page, head, len);
	return tx(end, buf, kind, size);
}

/* The next frame that has come, or NULL. It has to be given back. */
static struct buf *rx(struct end *end)
{
	struct ring_frame *frame = tb_ring_poll(end->rx);

	if (!frame)
		return NULL;
	dma_sync_single_for_cpu(dma(end), frame->buffer_phy, tb_ring_frame_size(frame), DMA_FROM_DEVICE);
	return container_of(frame, struct buf, frame);
}

static int give_back(struct end *end, struct buf *buf)
{
	dma_sync_single_for_device(dma(end), buf->frame.buffer_phy, TB_MAX_FRAME_SIZE, DMA_FROM_DEVICE);
	return tb_ring_rx(end->rx, &buf->frame);
}

/* The answering end, woken by the first frame. */
static void answer(struct work_struct *work)
{
	struct end *end = container_of(work, struct end, answer);
	bool sending = false, moved = true;
	struct buf *buf;
	u64 last = 0;
	int ret = 0;

	mutex_lock(&end->lock);
	while (!ret && !stop(end)) {
		if (sending && (buf = tx_buf(end)))
			ret = tx(end, buf, DATA, TB_MAX_FRAME_SIZE);
		buf = rx(end);
		if (!buf) {
			/* Looking at the clock costs about as much as taking a frame. */
			u64 now = ktime_get_ns();

			if (moved)
				last = now;
			else if (now - last > (sending ? SILENCE_NS : IDLE_NS))
				break;
			moved = false;
			cpu_relax();
			continue;
		}
		moved = true;
		switch (buf->frame.eof) {
		case PING:
			ret = tx_head(end, PONG, tb_ring_frame_size(&buf->frame), buf->page, sizeof(u16));
			break;
		case BEGIN:
			end->counted = 0;
			sending = *(u8 *)buf->page;
			break;
		case DATA:
			end->counted++;
			break;
		case END:
			sending = false;
			ret = tx_head(end, COUNT, sizeof(end->counted), &end->counted, sizeof(end->counted));
			break;
		}
		ret = give_back(end, buf) ?: ret;
	}
	/* Unmasks the interrupt; frames that have come since then raise it again. */
	tb_ring_poll_complete(end->rx);
	mutex_unlock(&end->lock);
}

/* Called by the interrupt, which stays masked until tb_ring_poll_complete(). */
static void woken(void *data)
{
	struct end *end = data;

	queue_work(queue, &end->answer);
}

/* Waits for the answer to the frame that went out at `since`. */
static struct buf *wait_for(struct end *end, enum kind kind, u64 since)
{
	struct buf *buf;
	int ret;

	for (;;) {
		buf = rx(end);
		if (buf) {
			if (buf->frame.eof == kind)
				return buf;
			if (buf->frame.eof == DATA) {
				end->counted++;
				since = ktime_get_ns();
			}
			/* Anything else is late, of a run that was given up. */
			ret = give_back(end, buf);
			if (ret)
				return ERR_PTR(ret);
			continue;
		}
		if (stop(end))
			return ERR_PTR(-EINTR);
		if (ktime_get_ns() - since > SILENCE_NS)
			return ERR_PTR(-ETIMEDOUT);
		cpu_relax();
	}
}

static int compare(const void *a, const void *b)
{
	return cmp_int(*(const u32 *)a, *(const u32 *)b);
}

static int pingpong(struct end *end, size_t size, u64 until)
{
	unsigned int trips = 0;
	u32 *times = kvmalloc_array(TRIPS_MAX, sizeof(*times), GFP_KERNEL);
	int ret = 0;

	if (!times)
		return -ENOMEM;
	do {
		u64 start = ktime_get_ns();
		u16 number = trips;
		struct buf *buf;
		bool right;

		ret = tx_head(end, PING, size, &number, sizeof(number));
		if (ret)
			break;
		do {
			buf = wait_for(end, PONG, start);
			if (IS_ERR(buf)) {
				ret = PTR_ERR(buf);
				break;
			}
			right = *(u16 *)buf->page == number && tb_ring_frame_size(&buf->frame) == size;
			times[trips] = min_t(u64, ktime_get_ns() - start, U32_MAX);
			ret = give_back(end, buf);
		} while (!ret && !right);
		if (ret)
			break;
		trips++;
	} while (trips < TRIPS_MAX && ktime_get_ns() < until);
	if (!ret) {
		sort(times, trips, sizeof(*times), compare, NULL);
		snprintf(end->result, sizeof(end->result), "trips=%u median_ns=%u p99_ns=%u\n", trips,
			 times[trips / 2] / 2, times[min(trips - 1, trips * 99 / 100)] / 2);
	}
	kvfree(times);
	return ret;
}

static int blast(struct end *end, bool both, u64 until)
{
	u64 start = ktime_get_ns(), now = start, sent = 0, there;
	u8 flag = both;
	struct buf *buf;
	int ret;

	end->counted = 0;
	ret = tx_head(end, BEGIN, sizeof(u64), &flag, sizeof(flag));
	while (!ret && now < until) {
		buf = tx_buf(end);
		if (buf) {
			ret = tx(end, buf, DATA, TB_MAX_FRAME_SIZE);
			sent++;
		}
		if (both) {
			struct buf *got = rx(end);

			if (got) {
				end->counted += got->frame.eof == DATA;
				ret = give_back(end, got) ?: ret;
			}
		}
		if (!buf || sent % 64 == 0) {
			now = ktime_get_ns();
			if (stop(end))
				return -EINTR;
		}
	}
	if (!ret)
		ret = tx_head(end, END, sizeof(u64), &sent, sizeof(sent));
	if (ret)
		return ret;
	buf = wait_for(end, COUNT, ktime_get_ns());
	if (IS_ERR(buf))
		return PTR_ERR(buf);
	now = ktime_get_ns();
	memcpy(&there, buf->page, sizeof(there));
	ret = give_back(end, buf);
	if (ret)
		return ret;
	if (there != sent) {
		pr_err("%llu of %llu frames have arrived\n", there, sent);
		return -EIO;
	}
	snprintf(end->result, sizeof(end->result), "bytes=%llu ns=%llu\n",
		 (sent + end->counted) * TB_MAX_FRAME_SIZE, now - start);
	return 0;
}

static ssize_t run_write(struct file *file, const char __user *text, size_t len, loff_t *pos)
{
	struct end *end = ((struct seq_file *)file->private_data)->private;
	unsigned int size = 0, ms = 0;
	char command[32];
	struct buf *buf;
	u64 until;
	int ret;

	if (len >= sizeof(command))
		return -EINVAL;
	if (copy_from_user(command, text, len))
		return -EFAULT;
	command[len] = 0;
	if (sscanf(command, "pingpong %u %u", &size, &ms) == 2) {
		if (size < sizeof(u16) || size > TB_MAX_FRAME_SIZE)
			return -EINVAL;
	} else if (sscanf(command, "blast %u", &ms) != 1 && sscanf(command, "both %u", &ms) != 1) {
		return -EINVAL;
	}
	if (!ms || ms > 60000)
		return -EINVAL;
	ret = mutex_lock_interruptible(&end->lock);
	if (ret)
		return ret;
	end->result[0] = 0;
	/* What came too late for an earlier run. */
	while (!ret && (buf = rx(end)))
		ret = give_back(end, buf);
	until = ktime_get_ns() + (u64)ms * NSEC_PER_MSEC;
	if (ret)
		;
	else if (size)
		ret = pingpong(end, size, until);
	else
		ret = blast(end, command[1] == 'o', until);
	mutex_unlock(&end->lock);
	return ret ?: len;
}

static int run_show(struct seq_file *file, void *data)
{
	struct end *end = file->private;

	seq_puts(file, end->result);
	return 0;
}

static int run_open(struct inode *inode, struct file *file)
{
	return single_open(file, run_show, inode->i_private);
}

static const struct file_operations run_fops = {
	.owner = THIS_MODULE,
	.open = run_open,
	.read = seq_read,
	.write = run_write,
	.release = single_release,
};

static void free_bufs(struct end *end, struct buf *bufs, enum dma_data_direction dir)
{
	int i;

	if (!bufs)
		return;
	for (i = 0; i < RING_SIZE; i++) {
		if (bufs[i].frame.buffer_phy)
			dma_unmap_single(dma(end), bufs[i].frame.buffer_phy, TB_MAX_FRAME_SIZE, dir);
		free_page((unsigned long)bufs[i].page);
	}
	kvfree(bufs);
}

static struct buf *alloc_bufs(struct end *end, enum dma_data_direction dir)
{
	struct buf *bufs = kvcalloc(RING_SIZE, sizeof(*bufs), GFP_KERNEL);
	int i;

	if (!bufs)
		return NULL;
	for (i = 0; i < RING_SIZE; i++) {
		dma_addr_t addr;

		bufs[i].page = (void *)get_zeroed_page(GFP_KERNEL);
		if (!bufs[i].page)
			goto fail;
		addr = dma_map_single(dma(end), bufs[i].page, TB_MAX_FRAME_SIZE, dir);
		if (dma_mapping_error(dma(end), addr))
			goto fail;
		bufs[i].frame.buffer_phy = addr;
	}
	return bufs;
fail:
	free_bufs(end, bufs, dir);
	return NULL;
}

static void undo(struct end *end)
{
	debugfs_remove(end->dir);
	if (end->paths)
		tb_xdomain_disable_paths(end->xd, hopid, end->tx->hop, hopid, end->rx->hop);
	if (end->started) {
		/* No interrupt wakes the answering work any more, which ends at once. */
		tb_ring_stop(end->rx);
		cancel_work_sync(&end->answer);
		tb_ring_stop(end->tx);
	}
	if (end->tx) {
		free_bufs(end, end->rx_bufs, DMA_FROM_DEVICE);
		free_bufs(end, end->tx_bufs, DMA_TO_DEVICE);
		tb_ring_free(end->tx);
	}
	if (end->rx)
		tb_ring_free(end->rx);
	if (end->in_hop)
		tb_xdomain_release_in_hopid(end->xd, hopid);
	if (end->out_hop)
		tb_xdomain_release_out_hopid(end->xd, hopid);
	tb_xdomain_put(end->xd);
	kfree(end);
}

/* The core hands out the next free HopID above one that is taken, which is no use here. */
static int alloc_hops(struct end *end)
{
	int id = tb_xdomain_alloc_out_hopid(end->xd, hopid);

	if (id < 0)
		return id;
	end->out_hop = id == hopid;
	if (!end->out_hop) {
		tb_xdomain_release_out_hopid(end->xd, id);
		return -EBUSY;
	}
	id = tb_xdomain_alloc_in_hopid(end->xd, hopid);
	if (id < 0)
		return id;
	end->in_hop = id == hopid;
	if (!end->in_hop) {
		tb_xdomain_release_in_hopid(end->xd, id);
		return -EBUSY;
	}
	return 0;
}

static int set_up(struct end *end)
{
	unsigned int flags = RING_FLAG_FRAME | (e2e ? RING_FLAG_E2E : 0);
	struct tb_nhi *nhi = end->xd->tb->nhi;
	int i, ret;

	ret = alloc_hops(end);
	if (ret) {
		pr_err("HopID %d is not to be had: %d\n", hopid, ret);
		return ret;
	}
	end->tx = tb_ring_alloc_tx(nhi, -1, RING_SIZE, flags | RING_FLAG_NO_INTERRUPT);
	if (!end->tx)
		return -ENOMEM;
	end->rx = tb_ring_alloc_rx(nhi, -1, RING_SIZE, flags, e2e ? end->tx->hop : 0, BIT(PDF_START),
				   GENMASK(COUNT, PING), woken, end);
	end->tx_bufs = alloc_bufs(end, DMA_TO_DEVICE);
	end->rx_bufs = alloc_bufs(end, DMA_FROM_DEVICE);
	if (!end->rx || !end->tx_bufs || !end->rx_bufs)
		return -ENOMEM;
	tb_ring_start(end->tx);
	tb_ring_start(end->rx);
	end->started = true;
	for (i = 0; i < RING_SIZE - 1; i++) {
		ret = give_back(end, &end->rx_bufs[i]);
		if (ret)
			return ret;
	}
	ret = tb_xdomain_enable_paths(end->xd, hopid, end->tx->hop, hopid, end->rx->hop);
	if (ret)
		return ret;
	end->paths = true;
	end->dir = debugfs_create_dir(KBUILD_MODNAME, NULL);
	if (IS_ERR(end->dir))
		return PTR_ERR(end->dir);
	debugfs_create_file("run", 0600, end->dir, end, &run_fops);
	return 0;
}

static void leave(struct end *end)
{
	WRITE_ONCE(end->leaving, true);
	undo(end);
}

static int probe(struct tb_service *svc)
{
	struct end *end;
	int ret = -EBUSY;

	mutex_lock(&only_lock);
	if (only)
		goto out;
	ret = -ENOMEM;
	end = kzalloc(sizeof(*end), GFP_KERNEL);
	if (!end)
		goto out;
	mutex_init(&end->lock);
	INIT_WORK(&end->answer, answer);
	end->xd = tb_xdomain_get(tb_service_parent(svc));
	ret = set_up(end);
	if (ret) {
		leave(end);
		goto out;
	}
	only = end;
	tb_service_set_drvdata(svc, end);
out:
	mutex_unlock(&only_lock);
	return ret;
}

static void depart(struct tb_service *svc)
{
	struct end *end = tb_service_get_drvdata(svc);

	if (!end)
		return;
	tb_service_set_drvdata(svc, NULL);
	mutex_lock(&only_lock);
	only = NULL;
	leave(end);
	mutex_unlock(&only_lock);
}

static const struct tb_service_id ids[] = {
	{ TB_SERVICE("tbraw", 1) },
	{ }
};
MODULE_DEVICE_TABLE(tbsvc, ids);

static struct tb_service_driver driver = {
	.driver = {
		.name = "tbraw",
		.owner = THIS_MODULE,
	},
	.probe = probe,
	.remove = depart,
	.shutdown = depart,
	.id_table = ids,
};

static const uuid_t dir_uuid = UUID_INIT(0x7ab0d7a5, 0x5b04, 0x4e02,
					 0x92, 0x3c, 0x5d, 0x2c, 0x0a, 0x5e, 0x8f, 0x61);
static struct tb_property_dir *dir;

static int announce(void)
{
	static const char * const names[] = { "prtcid", "prtcvers", "prtcrevs", "prtcstns" };
	int i, ret;

	dir = tb_property_create_dir(&dir_uuid);
	if (!dir)
		return -ENOMEM;
	for (i = 0; i < ARRAY_SIZE(names); i++) {
		ret = tb_property_add_immediate(dir, names[i], i < 2);
		if (ret)
			goto fail;
	}
	ret = tb_register_property_dir("tbraw", dir);
	if (!ret)
		return 0;
fail:
	tb_property_free_dir(dir);
	return ret;
}

static int __init tbraw_init(void)
{
	int ret;

	queue = alloc_workqueue("tbraw", WQ_UNBOUND | WQ_HIGHPRI, 0);
	if (!queue)
		return -ENOMEM;
	ret = tb_register_service_driver(&driver);
	if (ret)
		goto fail;
	ret = announce();
	if (!ret)
		return 0;
	tb_unregister_service_driver(&driver);
fail:
	destroy_workqueue(queue);
	return ret;
}
module_init(tbraw_init);

static void __exit tbraw_exit(void)
{
	tb_unregister_property_dir("tbraw", dir);
	tb_property_free_dir(dir);
	tb_unregister_service_driver(&driver);
	destroy_workqueue(queue);
}
module_exit(tbraw_exit);

MODULE_DESCRIPTION("What a pair of Thunderbolt DMA rings can do at most");
MODULE_LICENSE("GPL");
