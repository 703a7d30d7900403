/* The library as a whole: lock, clock, injected faults, initialisation, and what a test drives it with. */
#include "sim.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct sim sim;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char problem_text[256];

static int64_t clock_ns(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

int64_t now_ns(void)
{
    return sim.virtual_clock ? sim.virtual_ns : clock_ns(CLOCK_MONOTONIC) - sim.origin_ns;
}

struct device *gpu_at(unsigned position)
{
    return &sim.devices[position * (1 + MAX_MIGS)];
}

static bool is_device(const struct device *device)
{
    for (int i = 0; i < MAX_GPUS * (1 + MAX_MIGS); i++)
        if (device == &sim.devices[i])
            return device->present;
    return false;
}

static bool applies(const struct rule *rule, enum function function, int part, const struct device *device,
                    int64_t at_ns)
{
    return (rule->function == function || (rule->function == ANY_FUNCTION && device))
        && rule->part == part && (!rule->device || rule->device == device)
        && rule->from_ns <= at_ns && at_ns < rule->to_ns;
}

int injected(enum function function, int part, const struct device *device)
{
    int64_t now = now_ns();
    for (int i = sim.rule_count - 1; i >= 0; i--)
        if (!sim.rules[i].is_value && applies(&sim.rules[i], function, part, device, now))
            return sim.rules[i].code;
    return OK;
}

double altered(enum function function, int part, const struct device *device, int64_t at_ns, double value)
{
    for (int i = sim.rule_count - 1; i >= 0; i--)
        if (sim.rules[i].is_value && applies(&sim.rules[i], function, part, device, at_ns))
            return sim.rules[i].value;
    return value;
}

int enter(enum function function, const struct device *device, bool takes_device)
{
    pthread_mutex_lock(&lock);
    sim.calls[function]++;
    int64_t latency = sim.latency_us[function];
    if (latency) {
        pthread_mutex_unlock(&lock);
        struct timespec left = {latency / 1000000, latency % 1000000 * 1000};
        while (nanosleep(&left, &left) && errno == EINTR)
            ;
        pthread_mutex_lock(&lock);
    }
    int code = OK;
    if (!sim.references && function != F_nvmlInit)
        code = UNINITIALIZED;
    else if (takes_device && !is_device(device))
        code = INVALID_ARGUMENT;
    else if (sim.loaded)
        code = injected(function, NO_PART, device);
    if (code != OK)
        pthread_mutex_unlock(&lock);
    return code;
}

void leave(void)
{
    pthread_mutex_unlock(&lock);
}

static void set_origin(void)
{
    sim.origin_ns = clock_ns(CLOCK_MONOTONIC);
    if (sim.stamp_base_ns < 0)
        sim.stamp_base_ns = sim.stamps_epoch ? clock_ns(CLOCK_REALTIME) : sim.origin_ns;
}

static bool load_file(const char *path)
{
    FILE *file = fopen(path, "r");
    char *text = NULL;
    size_t size = 0;
    bool read = file && getdelim(&text, &size, '\0', file) >= 0;
    const char *problem = read ? load_text(text) : "cannot be read";
    if (file)
        fclose(file);
    free(text);
    if (problem)
        fprintf(stderr, "nvml_sim: %s: %s\n", path, problem);
    return !problem;
}

static void write_log(bool at_end)
{
    const char *path = getenv("NVMLSIM_LOG");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (!file)
        return;
#define X(name) \
    if (at_end && sim.calls[F_##name]) \
        fprintf(file, "calls %ld %s %llu\n", (long)getpid(), #name, (unsigned long long)sim.calls[F_##name]);
    FUNCTIONS(X)
#undef X
    if (!at_end)
        fprintf(file, "init %ld\n", (long)getpid());
    fclose(file);
}

static int initialise(void)
{
    const char *path = getenv("NVMLSIM_SCENARIO");
    pthread_mutex_lock(&lock);
    if (!sim.loaded && path && load_file(path))
        set_origin();
    bool loaded = sim.loaded;
    pthread_mutex_unlock(&lock);
    RETURN_IF(!loaded, DRIVER_NOT_LOADED);
    int code = enter(F_nvmlInit, NULL, false);
    RETURN_IF(code != OK, code);
    sim.references++;
    write_log(false);
    leave();
    return OK;
}

EXPORT int nvmlInit(void);
EXPORT int nvmlInit_v2(void);
EXPORT int nvmlInitWithFlags(unsigned flags);

EXPORT int nvmlInit(void)
{
    return initialise();
}

EXPORT int nvmlInit_v2(void)
{
    return initialise();
}

EXPORT int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    return initialise();
}

SYSTEM_API(nvmlShutdown, (void), ())
{
    sim.references--;
    return OK;
}

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

/* A child has to initialise the library anew, as its parent's connection to the driver is not its own. */
static void in_child(void)
{
    sim.references = 0;
    memset(sim.calls, 0, sizeof sim.calls);
    pthread_mutex_unlock(&lock);
}

__attribute__((constructor)) static void at_load(void)
{
    pthread_atfork(before_fork, leave, in_child);
}

__attribute__((destructor)) static void at_exit(void)
{
    write_log(true);
    forget();
}

EXPORT const char *nvmlErrorString(int code);
EXPORT const char *nvmlErrorString(int code)
{
    switch (code) {
    case OK: return "success";
    case UNINITIALIZED: return "library not initialised";
    case NOT_SUPPORTED: return "not supported by the device";
    case DRIVER_NOT_LOADED: return "driver not loaded";
    default: return "error of the simulated driver";
    }
}

EXPORT const char *sim_load(const char *text);
EXPORT const char *sim_line(const char *text);
EXPORT void sim_unload(void);
EXPORT void sim_clear_rules(void);
EXPORT void sim_set_time(int64_t ns);
EXPORT int64_t sim_time(void);
EXPORT int64_t sim_calls(const char *function);
EXPORT void sim_reset_calls(void);

/* Both return what is wrong with the text, in memory that holds until the next call, or NULL. */
static const char *told(const char *problem, const char *text)
{
    if (problem)
        snprintf(problem_text, sizeof problem_text, "%s: %.180s", problem, text);
    return problem ? problem_text : NULL;
}

const char *sim_load(const char *text)
{
    pthread_mutex_lock(&lock);
    const char *problem = told(load_text(text), text);
    set_origin();
    pthread_mutex_unlock(&lock);
    return problem;
}

const char *sim_line(const char *text)
{
    char line[1024];
    snprintf(line, sizeof line, "%s", text);
    pthread_mutex_lock(&lock);
    const char *problem = told(load_line(line), text);
    pthread_mutex_unlock(&lock);
    return problem;
}

void sim_unload(void)
{
    pthread_mutex_lock(&lock);
    forget();
    pthread_mutex_unlock(&lock);
}

void sim_clear_rules(void)
{
    pthread_mutex_lock(&lock);
    sim.rule_count = 0;
    memset(sim.latency_us, 0, sizeof sim.latency_us);
    pthread_mutex_unlock(&lock);
}

void sim_set_time(int64_t ns)
{
    pthread_mutex_lock(&lock);
    sim.virtual_ns = ns;
    pthread_mutex_unlock(&lock);
}

int64_t sim_time(void)
{
    pthread_mutex_lock(&lock);
    int64_t now = now_ns();
    pthread_mutex_unlock(&lock);
    return now;
}

int64_t sim_calls(const char *function)
{
    enum function found = function_named(function);
    pthread_mutex_lock(&lock);
    int64_t calls = found < FUNCTION_COUNT ? (int64_t)sim.calls[found] : -1;
    pthread_mutex_unlock(&lock);
    return calls;
}

void sim_reset_calls(void)
{
    pthread_mutex_lock(&lock);
    memset(sim.calls, 0, sizeof sim.calls);
    pthread_mutex_unlock(&lock);
}
