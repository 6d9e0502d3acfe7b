/* Repeats the launches of an earlier call with matching arguments.
 *
 * A Table holds the recorded calls of all layers of one kind. The key of a call consists of the shape,
 * strides, dtype, device and alignment of every tensor, the earlier argument that is the same object, if any,
 * and the type and value of all other arguments. Tensors are read through DLPack's exchange interface, which
 * torch.Tensor provides, so that no Python objects are created.
 *
 * A Calls belongs to one layer. It has the table of the layer's kind, and the addresses of the layer's tensors,
 * which never change.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <ATen/dlpack.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define MOST_TENSORS 32
#define MOST_WORDS 512
#define MOST_PARAMETERS 128
#define BUCKETS 512
#define MOST_CALLS 1024 /* bounds the table if shapes never repeat */
#define ALIGNMENT 16    /* bytes; kernels are compiled for aligned or unaligned addresses */

/* The sources of parameters other than a call's tensors. KEPT is a tensor of the layer. */
enum { CONSTANT = -1, SCRATCH = -2, KEPT = -3 };

/* Layout defined by the driver's interface. */
typedef struct {
  int id, padding, value[16];
} Attribute;

typedef struct {
  unsigned grid[3], block[3], shared;
  void *stream;
  const Attribute *attributes;
  unsigned count;
} Configuration;

typedef int (*LaunchKernel)(const Configuration *configuration, void *function, void **parameters, void **extra);
typedef int (*CurrentDevice)(int *device);

/* Programs may start before the previous kernel ends. Only for kernels that wait for it themselves. */
static const Attribute early_launch = {.id = 6, .value = {1}};

typedef struct {
  uint64_t value; /* the bits of a constant, an offset into scratch, or the index of a layer's tensor */
  long long tensor;
} Parameter;

typedef struct {
  void *function;
  unsigned grid[3], threads, shared;
  int early;
  Py_ssize_t parameters; /* count */
} Launch;

typedef struct Record {
  struct Record *next;
  Py_ssize_t owners;
  uint64_t hash;
  Py_ssize_t words;
  int64_t *signature;
  PyObject *options;
  PyObject *kernels; /* keeps their binaries loaded */
  Py_ssize_t kept;   /* tensors of the layer */
  int32_t device;
  int64_t scratch; /* bytes */
  Py_ssize_t launches;
  Launch *launch;
  Parameter *parameters; /* of all launches */
} Record;

typedef struct {
  PyObject_HEAD
  PyTypeObject *tensor_type, *parameter_type;
  PyObject *knobs;
  LaunchKernel launch;
  CurrentDevice current_device;
  Py_ssize_t records;
  Record *buckets[BUCKETS];
} Table;

typedef struct {
  PyObject_VAR_HEAD /* its size is the number of the layer's tensors */
  Table *table;
  uint64_t addresses[];
} Calls;

/* The key and the addresses of a call's tensors. */
typedef struct {
  Py_ssize_t count;
  Py_ssize_t words;
  int64_t signature[MOST_WORDS];
  uint64_t addresses[MOST_TENSORS];
  uint64_t hash;
  DLDevice device; /* of the first tensor */
} Given;

static const DLPackExchangeAPI *exchange;
static PyObject *name_enter, *name_exit, *name_calls;

static void record_release(Record *record) {
  if (--record->owners > 0) return;
  Py_XDECREF(record->options);
  Py_XDECREF(record->kernels);
  PyMem_Free(record->signature);
  PyMem_Free(record->launch);
  PyMem_Free(record->parameters);
  PyMem_Free(record);
}

static void table_empty(Table *self) {
  Record *records = NULL;
  for (int i = 0; i < BUCKETS; i++) {
    while (self->buckets[i] != NULL) {
      Record *record = self->buckets[i];
      self->buckets[i] = record->next;
      record->next = records;
      records = record;
    }
  }
  self->records = 0;
  while (records != NULL) { /* last, since freeing objects may run any code */
    Record *record = records;
    records = record->next;
    record_release(record);
  }
}

/* Describes the tensors; returns 0 if DLPack can't describe one. */
static int describe(const Table *self, PyObject *tensors, Given *given) {
  given->count = PyTuple_GET_SIZE(tensors);
  given->words = 0;
  given->hash = 1469598103934665603u;
  given->device.device_type = (DLDeviceType)0;
  if (given->count > MOST_TENSORS) return 0;
  for (Py_ssize_t i = 0; i < given->count; i++) {
    PyObject *item = PyTuple_GET_ITEM(tensors, i);
    given->addresses[i] = 0;
    if (given->words + 3 > MOST_WORDS) return 0;
    int64_t *words = given->signature + given->words;
    if (item == Py_None) {
      words[0] = -1;
      given->words += 1;
      continue;
    }
    /* Other subclasses, such as fake tensors, may have no memory. */
    if (Py_TYPE(item) != self->tensor_type && Py_TYPE(item) != self->parameter_type) return 0;
    DLTensor tensor;
    if (exchange->dltensor_from_py_object_no_sync(item, &tensor) != 0) {
      PyErr_Clear();
      return 0;
    }
    int64_t same = 0;
    while (PyTuple_GET_ITEM(tensors, same) != item) same++;
    int64_t rank = tensor.ndim;
    if (given->words + 2 + 2 * rank > MOST_WORDS || (rank > 0 && tensor.strides == NULL)) return 0;
    uint64_t address = (uint64_t)tensor.data + tensor.byte_offset;
    words[0] = same | (int64_t)(address % ALIGNMENT == 0) << 8 | rank << 16 | (int64_t)tensor.dtype.code << 32 | (int64_t)tensor.dtype.bits << 40 |
               (int64_t)tensor.dtype.lanes << 48;
    words[1] = (int64_t)tensor.device.device_type << 32 | (uint32_t)tensor.device.device_id;
    if (rank > 0) {
      memcpy(words + 2, tensor.shape, rank * sizeof(int64_t));
      memcpy(words + 2 + rank, tensor.strides, rank * sizeof(int64_t));
    }
    given->words += 2 + 2 * rank;
    given->addresses[i] = address;
    if (given->device.device_type == 0) given->device = tensor.device;
  }
  for (Py_ssize_t i = 0; i < given->words; i++) {
    given->hash = (given->hash ^ (uint64_t)given->signature[i]) * 1099511628211u;
    given->hash ^= given->hash >> 29;
  }
  return given->device.device_type != 0;
}

/* Whether all are None or of a plain type, so that comparing them runs no foreign code. */
static int plain(PyObject *options) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(options); i++) {
    PyObject *option = PyTuple_GET_ITEM(options, i);
    if (option != Py_None && !PyBool_Check(option) && !PyLong_CheckExact(option) &&
        !PyFloat_CheckExact(option) && !PyUnicode_CheckExact(option))
      return 0;
  }
  return 1;
}

/* Whether two tuples hold equal values of the same types; the first holds plain values. */
static int same_options(PyObject *left, PyObject *right) {
  Py_ssize_t count = PyTuple_GET_SIZE(left);
  if (count != PyTuple_GET_SIZE(right)) return 0;
  for (Py_ssize_t i = 0; i < count; i++) {
    PyObject *a = PyTuple_GET_ITEM(left, i), *b = PyTuple_GET_ITEM(right, i);
    if (a == b) continue;
    if (Py_TYPE(a) != Py_TYPE(b)) return 0;
    int same = PyObject_RichCompareBool(a, b, Py_EQ);
    if (same < 0) PyErr_Clear();
    if (same <= 0) return 0;
  }
  return 1;
}

static Record *find(const Calls *self, const Given *given, PyObject *options) {
  Record *record = self->table->buckets[given->hash % BUCKETS];
  for (; record != NULL; record = record->next) {
    if (record->hash == given->hash && record->words == given->words && record->kept == Py_SIZE(self) &&
        memcmp(record->signature, given->signature, given->words * sizeof(int64_t)) == 0 &&
        same_options(record->options, options))
      break;
  }
  return record;
}

/* Whether hooks on Triton's launches are set, for example by a profiler; they must see every launch. */
static int has_hooks(const Table *self) {
  PyObject *names[] = {name_enter, name_exit};
  for (int i = 0; i < 2; i++) {
    PyObject *chain = PyObject_GetAttr(self->knobs, names[i]);
    PyObject *calls = chain == NULL ? NULL : PyObject_GetAttr(chain, name_calls);
    int any = calls == NULL ? 1 : PyObject_IsTrue(calls);
    Py_XDECREF(chain);
    Py_XDECREF(calls);
    if (any != 0) {
      PyErr_Clear();
      return 1;
    }
  }
  return 0;
}

static void set_error(void *context, const char *kind, const char *message) {
  (void)context;
  PyErr_Format(PyExc_RuntimeError, "%s: %s", kind, message);
}

/* Launches a record's kernels on the current stream. Returns 1, or -1 with an exception set if that failed. If
 * there is no scratch memory, returns 0: the caller then launches through Triton, where torch raises its error. */
static int launch(const Calls *self, const Record *record, const Given *given) {
  void *stream = NULL;
  if (exchange->current_work_stream(given->device.device_type, given->device.device_id, &stream) != 0) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, "can't get the current stream");
    return -1;
  }
  DLManagedTensorVersioned *scratch = NULL;
  uint64_t base = 0;
  if (record->scratch > 0) {
    int64_t bytes = record->scratch;
    DLTensor wanted = {.device = given->device, .ndim = 1, .dtype = {kDLUInt, 8, 1}, .shape = &bytes};
    if (exchange->managed_tensor_allocator(&wanted, &scratch, NULL, set_error) != 0) {
      PyErr_Clear();
      return 0;
    }
    base = (uint64_t)scratch->dl_tensor.data + scratch->dl_tensor.byte_offset;
  }
  int failure = 0;
  Py_BEGIN_ALLOW_THREADS /* a launch waits if the device's queue is full */
  uint64_t values[MOST_PARAMETERS];
  void *pointers[MOST_PARAMETERS];
  const Parameter *parameter = record->parameters;
  for (Py_ssize_t i = 0; i < record->launches && failure == 0; i++) {
    const Launch *one = record->launch + i;
    for (Py_ssize_t j = 0; j < one->parameters; j++, parameter++) {
      values[j] = parameter->value;
      if (parameter->tensor == SCRATCH) values[j] += base;
      if (parameter->tensor == KEPT) values[j] = self->addresses[parameter->value];
      if (parameter->tensor >= 0) values[j] = given->addresses[parameter->tensor];
      pointers[j] = values + j;
    }
    const Configuration configuration = {.grid = {one->grid[0], one->grid[1], one->grid[2]},
                                         .block = {one->threads, 1, 1},
                                         .shared = one->shared,
                                         .stream = stream,
                                         .attributes = &early_launch,
                                         .count = one->early ? 1 : 0};
    failure = self->table->launch(&configuration, one->function, pointers, NULL);
  }
  Py_END_ALLOW_THREADS
  /* The stream runs these launches before any later use of the memory. */
  if (scratch != NULL) scratch->deleter(scratch);
  if (failure != 0) PyErr_Format(PyExc_RuntimeError, "CUDA error %d in the launch of a kernel", failure);
  return failure == 0 ? 1 : -1;
}

static int parse_call(PyObject *const *args, Py_ssize_t count, Py_ssize_t expected) {
  if (count == expected && PyTuple_CheckExact(args[0]) && PyTuple_CheckExact(args[1])) return 1;
  PyErr_SetString(PyExc_TypeError, "expected a tuple of the call's tensors and a tuple of its other arguments");
  return 0;
}

static PyObject *calls_again(Calls *self, PyObject *const *args, Py_ssize_t count) {
  if (!parse_call(args, count, 2)) return NULL;
  Given given;
  if (!describe(self->table, args[0], &given)) Py_RETURN_FALSE;
  Record *record = find(self, &given, args[1]);
  if (record == NULL) Py_RETURN_FALSE;
  record->owners++; /* the table may be emptied while the launches run */
  int device, done = 0;
  if (self->table->current_device(&device) == 0 && device == record->device && !has_hooks(self->table))
    done = launch(self, record, &given);
  record_release(record);
  if (done < 0) return NULL;
  return PyBool_FromLong(done);
}

/* Adds a launch, ((function, x, y, z, threads, shared, early), ((tensor, value), ...)), to the record. */
static int add_launch(Record *record, PyObject *described, Py_ssize_t tensors) {
  PyObject *shape, *parameters;
  unsigned long long function;
  Launch *one = record->launch + record->launches;
  if (!PyTuple_Check(described)) {
    PyErr_SetString(PyExc_TypeError, "a launch must be a pair of tuples");
    return 0;
  }
  if (!PyArg_ParseTuple(described, "O!O!", &PyTuple_Type, &shape, &PyTuple_Type, &parameters) ||
      !PyArg_ParseTuple(shape, "KIIIIIp", &function, &one->grid[0], &one->grid[1], &one->grid[2], &one->threads,
                        &one->shared, &one->early))
    return 0;
  one->function = (void *)(uintptr_t)function;
  one->parameters = PyTuple_GET_SIZE(parameters);
  Py_ssize_t before = 0;
  for (Py_ssize_t i = 0; i < record->launches; i++) before += record->launch[i].parameters;
  if (one->parameters > MOST_PARAMETERS) {
    PyErr_SetString(PyExc_ValueError, "a kernel has more than 128 parameters");
    return 0;
  }
  size_t bytes = (size_t)(before + one->parameters) * sizeof(Parameter);
  Parameter *grown = PyMem_Realloc(record->parameters, bytes > 0 ? bytes : 1);
  if (grown == NULL) {
    PyErr_NoMemory();
    return 0;
  }
  record->parameters = grown;
  for (Py_ssize_t i = 0; i < one->parameters; i++) {
    Parameter *parameter = grown + before + i;
    unsigned long long value;
    PyObject *pair = PyTuple_GET_ITEM(parameters, i);
    if (!PyTuple_Check(pair)) {
      PyErr_SetString(PyExc_TypeError, "a parameter must be a pair of integers");
      return 0;
    }
    if (!PyArg_ParseTuple(pair, "LK", &parameter->tensor, &value)) return 0;
    if (parameter->tensor < KEPT || parameter->tensor >= tensors ||
        (parameter->tensor == KEPT && value >= (unsigned long long)record->kept)) {
      PyErr_SetString(PyExc_ValueError, "a parameter refers to a tensor that the call or its layer does not have");
      return 0;
    }
    parameter->value = value;
  }
  record->launches++;
  return 1;
}

static PyObject *calls_add(Calls *self, PyObject *const *args, Py_ssize_t count) {
  if (!parse_call(args, count, 5)) return NULL;
  Given given;
  if (!describe(self->table, args[0], &given)) Py_RETURN_FALSE;
  PyObject *launches = args[2], *kernels = args[4];
  long long scratch = PyLong_AsLongLong(args[3]);
  if (scratch == -1 && PyErr_Occurred()) return NULL;
  if (!PyTuple_CheckExact(launches)) {
    PyErr_SetString(PyExc_TypeError, "the launches must be a tuple");
    return NULL;
  }
  if (!plain(args[1])) {
    PyErr_SetString(PyExc_TypeError, "the other arguments must be None, bool, int, float or str");
    return NULL;
  }
  if (find(self, &given, args[1]) != NULL) Py_RETURN_TRUE; /* another thread or layer added it */
  Record *record = PyMem_Calloc(1, sizeof(Record));
  if (record == NULL) return PyErr_NoMemory();
  record->owners = 1;
  record->hash = given.hash;
  record->words = given.words;
  record->options = Py_NewRef(args[1]);
  record->kernels = Py_NewRef(kernels);
  record->kept = Py_SIZE(self);
  record->device = given.device.device_id;
  record->scratch = scratch;
  record->signature = PyMem_Malloc(given.words * sizeof(int64_t));
  record->launch = PyMem_Calloc(PyTuple_GET_SIZE(launches) + 1, sizeof(Launch));
  if (record->signature == NULL || record->launch == NULL) {
    record_release(record);
    return PyErr_NoMemory();
  }
  memcpy(record->signature, given.signature, given.words * sizeof(int64_t));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(launches); i++) {
    if (!add_launch(record, PyTuple_GET_ITEM(launches, i), given.count)) {
      record_release(record);
      return NULL;
    }
  }
  Table *table = self->table;
  if (table->records == MOST_CALLS) table_empty(table);
  Record **bucket = &table->buckets[record->hash % BUCKETS];
  record->next = *bucket;
  *bucket = record;
  table->records++;
  Py_RETURN_TRUE;
}

static Py_ssize_t table_length(PyObject *self) { return ((Table *)self)->records; }

static PyObject *table_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  static char *names[] = {"", "", "", "", "", NULL};
  PyObject *tensor_type, *parameter_type, *knobs;
  unsigned long long launch_kernel, current_device;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!O!OKK", names, &PyType_Type, &tensor_type, &PyType_Type,
                                   &parameter_type, &knobs, &launch_kernel, &current_device))
    return NULL;
  Table *self = (Table *)type->tp_alloc(type, 0);
  if (self == NULL) return NULL;
  self->tensor_type = (PyTypeObject *)Py_NewRef(tensor_type);
  self->parameter_type = (PyTypeObject *)Py_NewRef(parameter_type);
  self->knobs = Py_NewRef(knobs);
  self->launch = (LaunchKernel)(uintptr_t)launch_kernel;
  self->current_device = (CurrentDevice)(uintptr_t)current_device;
  return (PyObject *)self;
}

static void table_dealloc(Table *self) {
  table_empty(self);
  Py_XDECREF(self->tensor_type);
  Py_XDECREF(self->parameter_type);
  Py_XDECREF(self->knobs);
  Py_TYPE(self)->tp_free((PyObject *)self);
}

static PySequenceMethods table_sequence = {.sq_length = table_length};

static PyTypeObject table_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "switchrail_replay.Table",
    .tp_basicsize = sizeof(Table),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = table_new,
    .tp_dealloc = (destructor)table_dealloc,
    .tp_as_sequence = &table_sequence,
};

static PyObject *calls_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  static char *names[] = {"", "", NULL};
  PyObject *table, *addresses;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!O!", names, &table_type, &table, &PyTuple_Type, &addresses)) return NULL;
  Py_ssize_t count = PyTuple_GET_SIZE(addresses);
  Calls *self = (Calls *)type->tp_alloc(type, count);
  if (self == NULL) return NULL;
  self->table = (Table *)Py_NewRef(table);
  for (Py_ssize_t i = 0; i < count; i++) {
    self->addresses[i] = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(addresses, i));
    if (self->addresses[i] == (uint64_t)-1 && PyErr_Occurred()) {
      Py_DECREF(self);
      return NULL;
    }
  }
  return (PyObject *)self;
}

static void calls_dealloc(Calls *self) {
  Py_XDECREF(self->table);
  Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef calls_methods[] = {
    {"again", (PyCFunction)(void (*)(void))calls_again, METH_FASTCALL, NULL},
    {"add", (PyCFunction)(void (*)(void))calls_add, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject calls_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "switchrail_replay.Calls",
    .tp_basicsize = offsetof(Calls, addresses),
    .tp_itemsize = sizeof(uint64_t),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = calls_new,
    .tp_dealloc = (destructor)calls_dealloc,
    .tp_methods = calls_methods,
};

static PyObject *replay_connect(PyObject *Py_UNUSED(module), PyObject *capsule) {
  const DLPackExchangeAPI *found = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
  while (found != NULL && found->header.version.major != DLPACK_MAJOR_VERSION)
    found = (const DLPackExchangeAPI *)found->header.prev_api;
  if (found == NULL) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ImportError, "torch has another version of DLPack's interface");
    return NULL;
  }
  exchange = found;
  Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"connect", replay_connect, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "switchrail_replay", .m_size = -1, .m_methods = methods};

PyMODINIT_FUNC PyInit_switchrail_replay(void) {
  name_enter = PyUnicode_InternFromString("launch_enter_hook");
  name_exit = PyUnicode_InternFromString("launch_exit_hook");
  name_calls = PyUnicode_InternFromString("calls");
  if (name_enter == NULL || name_exit == NULL || name_calls == NULL || PyType_Ready(&table_type) < 0 ||
      PyType_Ready(&calls_type) < 0)
    return NULL;
  PyObject *made = PyModule_Create(&module);
#ifdef Py_GIL_DISABLED
  if (made != NULL) PyUnstable_Module_SetGIL(made, Py_MOD_GIL_USED); /* the GIL guards the table */
#endif
  if (made != NULL && (PyModule_AddObjectRef(made, "Table", (PyObject *)&table_type) < 0 ||
                       PyModule_AddObjectRef(made, "Calls", (PyObject *)&calls_type) < 0))
    Py_CLEAR(made);
  return made;
}
